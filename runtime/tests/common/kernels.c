// Kernels of the fake bundle: one workgroup a call.
#include <stdint.h>
#define KERNEL(name) void name(const uint64_t *a, const int32_t *g, uint8_t *shared)
#define F(i) ((float *)a[i])
#define I(i) ((int32_t *)a[i])
#define N(i) ((int32_t)a[i])
enum { V = 8, W = 4, POOL = 4 };

static void fault(int32_t *status, int32_t kernel, int32_t row, int32_t value, int32_t code) {
  int32_t none = 0;
  if (__atomic_compare_exchange_n(status, &none, kernel + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    status[1] = row; status[2] = value; status[3] = code;
  }
}

// embed: ids, table, x, rows, status, id of this kernel
KERNEL(embed) {
  int32_t r = g[0];
  if (r >= N(3)) return;
  int32_t id = I(0)[r];
  if (id < 0 || id >= V) { fault(I(4), N(5), r, id, 1); return; }
  for (int c = 0; c < W; c++) F(2)[r * W + c] = F(1)[id * W + c];
}

// mix: x, positions, q_start, slot, block_table, state, tokens, pools, tail, y, seqs, block_size, blocks_per_seq,
// pools_per_block, max_slots, num_blocks, status, seq_len, row_seq
KERNEL(mix) {
  int32_t b = g[0], bs = N(11), m = N(12), ppb = N(13);
  if (b >= N(10)) return;
  int32_t slot = I(3)[b];
  if (slot == -1) return;
  if (slot < 0 || slot >= N(14)) { fault(I(16), 1, I(2)[b], slot, 2); return; }
  float *s = F(5) + slot * W, *tail = F(8) + slot * 2 * POOL * W;
  const int32_t *table = I(4) + b * m;
  for (int32_t r = I(2)[b]; r < I(2)[b + 1]; r++) {
    int32_t p = I(1)[r], block = table[p / bs];
    if (block < 0 || block >= N(15)) { fault(I(16), 1, r, block, 3); return; }
    if (I(18)[r] != b || I(17)[b] <= p) { fault(I(16), 1, r, p, 4); return; }
    for (int c = 0; c < W; c++) {
      float x = F(0)[r * W + c], y = 0;
      s[c] = s[c] * 0.5f + x;
      F(6)[((int64_t)block * bs + p % bs) * W + c] = x;
      tail[(p % POOL) * W + c] = x;
      tail[(POOL + p % POOL) * W + c] = 2 * x;
      if (p % POOL == POOL - 1) {
        float sum = 0;
        for (int j = 0; j < POOL; j++) sum += tail[j * W + c];
        F(7)[((int64_t)block * ppb + p % bs / POOL) * W + c] = sum;
      }
      for (int32_t t = 0; t <= p; t++) y += F(6)[((int64_t)table[t / bs] * bs + t % bs) * W + c];
      for (int32_t t = 0; t < (p + 1) / POOL; t++) y += F(7)[((int64_t)table[t * POOL / bs] * ppb + t % ppb) * W + c];
      F(9)[r * W + c] = y + s[c];
    }
  }
}

// head: y, table, logit_rows, logits, argmax, count, slot table
KERNEL(head) {
  int32_t l = g[0];
  if (l >= N(5)) return;
  float *score = (float *)shared;
  int32_t best = 0;
  for (int v = 0; v < V; v++) {
    score[v] = 0;
    for (int c = 0; c < W; c++) score[v] += F(0)[I(2)[l] * W + c] * F(1)[v * W + c];
    if (I(6)[0] < 0) score[v] = 0;
    if (score[v] > score[best]) best = v;
  }
  for (int v = 0; v < V; v++) F(3)[l * V + v] = score[v];
  I(4)[l] = best;
}
