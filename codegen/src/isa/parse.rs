//! Printed instruction -> [`Inst`].

use super::{Arg, Constant, Dpp, DppControl, Half, Inst, Mods, Omod, Scope, Special, sreg};

/// Instructions whose operands are no registers or numbers; they do nothing in a model with immediate results.
const FREE_OPERANDS: &[&str] = &["s_delay_alu", "s_wait_alu", "s_sendmsg", "s_waitcnt_depctr", "s_set_gpr_idx_on"];
/// Encoding suffixes.
const SUFFIXES: &[&str] = &["_dpp8", "_dpp", "_e32", "_e64"];

/// Parses one printed instruction of `size` bytes. The error says what was not understood.
pub fn parse(text: &str, size: u8) -> Result<Inst, String> {
    if let Some((first, second)) = text.split_once("::") {
        let mut inst = single(first.trim(), size)?;
        inst.pair = Some(Box::new(single(second.trim(), size)?));
        return Ok(inst);
    }
    single(text.trim(), size)
}

fn single(text: &str, size: u8) -> Result<Inst, String> {
    let (mnemonic, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let (name, dual) = base_name(mnemonic);
    let mut inst = Inst { name, args: Vec::new(), mods: Mods::default(), pair: None, size };
    if FREE_OPERANDS.contains(&inst.name.as_str()) {
        inst.mods.free = rest.trim().to_owned();
        return Ok(inst);
    }
    let mut dpp = DppParts::default();
    for word in words(rest) {
        // A modifier is `name` or `name:value`; register ranges have their colon in brackets.
        if !modifier(&mut inst.mods, &mut dpp, word)? {
            operand(&mut inst, word)?;
        }
    }
    inst.mods.dpp = dpp.finish();
    // The condition of this pair half is VCC, which it does not print.
    if dual && inst.name == "v_cndmask_b32" {
        inst.args.push(Arg::S { first: sreg::VCC, count: 1 });
    }
    Ok(inst)
}

fn base_name(mnemonic: &str) -> (String, bool) {
    let mut name = mnemonic;
    while let Some(shorter) = SUFFIXES.iter().find_map(|s| name.strip_suffix(s)) {
        name = shorter;
    }
    match name.strip_prefix("v_dual_") {
        Some(rest) => (format!("v_{rest}"), true),
        None => (name.to_owned(), false),
    }
}

/// Splits at commas and spaces that are not inside brackets.
fn words(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            ',' | ' ' | '\t' if depth == 0 => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out.retain(|w| !w.is_empty());
    out
}

fn number(text: &str) -> Result<i64, String> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |d| (-1, d));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).map(u64::cast_signed),
        None => digits.parse::<i64>(),
    };
    value.map(|v| v.wrapping_mul(sign)).map_err(|_| format!("`{text}` is no number"))
}

fn list<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let inner =
        text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).ok_or_else(|| format!("`{text}` is no list"))?;
    let mut out = [0; N];
    let items: Vec<&str> = inner.split(',').collect();
    if items.len() > N {
        return Err(format!("`{text}` has more than {N} items"));
    }
    for (slot, item) in out.iter_mut().zip(items) {
        *slot = small(item.trim())?;
    }
    Ok(out)
}

fn small(text: &str) -> Result<u8, String> {
    u8::try_from(number(text)?).map_err(|_| format!("`{text}` is not in 0..256"))
}

/// Bits of a list of 0 and 1.
fn bits(text: &str) -> Result<u8, String> {
    Ok(list::<4>(text)?.iter().enumerate().fold(0, |mask, (i, bit)| mask | (bit & 1) << i))
}

/// The parts of a lane permutation, in any order.
struct DppParts {
    kind: Option<Dpp>,
    row_mask: u8,
    bank_mask: u8,
    bound_ctrl: bool,
    fetch_inactive: bool,
}

impl Default for DppParts {
    fn default() -> Self {
        DppParts { kind: None, row_mask: 0xf, bank_mask: 0xf, bound_ctrl: false, fetch_inactive: false }
    }
}

impl DppParts {
    fn finish(self) -> Option<DppControl> {
        let DppParts { kind, row_mask, bank_mask, bound_ctrl, fetch_inactive } = self;
        kind.map(|kind| DppControl { kind, row_mask, bank_mask, bound_ctrl, fetch_inactive })
    }
}

/// Takes `word` as a modifier; false if it is an operand.
fn modifier(mods: &mut Mods, dpp: &mut DppParts, word: &str) -> Result<bool, String> {
    let (name, value) = word.split_once(':').unwrap_or((word, ""));
    match name {
        "clamp" => mods.clamp = true,
        "mul" => mods.omod = if value == "4" { Omod::Mul4 } else { Omod::Mul2 },
        "div" => mods.omod = Omod::Div2,
        "offen" => mods.offen = true,
        "offset" => {
            mods.offset = match value.strip_prefix("swizzle(").and_then(|v| v.strip_suffix(')')) {
                Some(pattern) => swizzle(pattern).ok_or_else(|| format!("`{word}` is no swizzle"))?,
                None => i32::try_from(number(value)?).map_err(|_| format!("`{word}` is too far"))?,
            };
        }
        "offset0" => mods.offset0 = small(value)?,
        "offset1" => mods.offset1 = small(value)?,
        "op_sel" => mods.op_sel = bits(value)?,
        "op_sel_hi" => mods.op_sel_hi = Some(bits(value)?),
        "neg_lo" => mods.neg_lo = bits(value)?,
        "neg_hi" => mods.neg_hi = bits(value)?,
        "byte_sel" => mods.byte_sel = small(value)?,
        // Temporal hints say how to cache, except this one.
        "th" => mods.returns |= value.contains("RETURN"),
        "scope" => mods.scope = scope(value)?,
        _ => return dpp_modifier(dpp, name, value),
    }
    Ok(true)
}

/// The offset that a lane pattern of `ds_swizzle_b32` stands for.
fn swizzle(pattern: &str) -> Option<i32> {
    let mut parts = pattern.split(',').map(str::trim);
    let kind = parts.next()?;
    if kind == "BITMASK_PERM" {
        // One character per bit of the lane, highest first: cleared, set, kept or inverted.
        let text = parts.next()?.trim_matches('"');
        return text.chars().try_fold(0, |out, c| {
            let bit = match c {
                '0' => 0,
                '1' => 0x20,
                'p' => 1,
                'i' => 0x401,
                _ => return None,
            };
            Some(out << 1 | bit)
        });
    }
    let numbers: Vec<i32> = parts.map(|p| p.parse().ok().filter(|n| (0..=32).contains(n))).collect::<Option<_>>()?;
    match (kind, numbers.as_slice()) {
        ("QUAD_PERM", [a, b, c, d]) => Some(0x8000 | a | b << 2 | c << 4 | d << 6),
        ("SWAP", [n]) => Some(n << 10 | 0x1f),
        ("REVERSE", [n]) => Some((n - 1) << 10 | 0x1f),
        ("BROADCAST", [n, lane]) => Some(lane << 5 | (0x20 - n)),
        // A rotation is printed without its mask: what it does cannot be told.
        ("FFT", [mask]) => Some(0xe000 | mask),
        _ => None,
    }
}

fn scope(value: &str) -> Result<Scope, String> {
    match value {
        "SCOPE_CU" => Ok(Scope::Cu),
        "SCOPE_SE" => Ok(Scope::Se),
        "SCOPE_DEV" => Ok(Scope::Dev),
        "SCOPE_SYS" => Ok(Scope::Sys),
        other => Err(format!("`{other}` is no scope")),
    }
}

fn dpp_modifier(dpp: &mut DppParts, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "quad_perm" => dpp.kind = Some(Dpp::QuadPerm(list(value)?)),
        "row_shl" => dpp.kind = Some(Dpp::RowShl(small(value)?)),
        "row_shr" => dpp.kind = Some(Dpp::RowShr(small(value)?)),
        "row_ror" => dpp.kind = Some(Dpp::RowRor(small(value)?)),
        "row_mirror" => dpp.kind = Some(Dpp::RowMirror),
        "row_half_mirror" => dpp.kind = Some(Dpp::RowHalfMirror),
        "row_share" => dpp.kind = Some(Dpp::RowShare(small(value)?)),
        "row_xmask" => dpp.kind = Some(Dpp::RowXmask(small(value)?)),
        "dpp8" => dpp.kind = Some(Dpp::Dpp8(list(value)?)),
        "row_mask" => dpp.row_mask = small(value)?,
        "bank_mask" => dpp.bank_mask = small(value)?,
        "bound_ctrl" => dpp.bound_ctrl = value == "1",
        "fi" => dpp.fetch_inactive = value == "1",
        _ => return Ok(false),
    }
    Ok(true)
}

fn operand(inst: &mut Inst, word: &str) -> Result<(), String> {
    let bit = 1u8.checked_shl(inst.args.len() as u32).ok_or("more than 8 operands")?;
    let mut inner = word;
    // `-4` and `-1.0` are constants; `-v0`, `-|v0|`, `-s0` and `neg(..)` are negations.
    if let Some(rest) = word.strip_prefix('-').filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())) {
        inst.mods.neg |= bit;
        inner = rest;
    } else if let Some(rest) = word.strip_prefix("neg(").and_then(|r| r.strip_suffix(')')) {
        inst.mods.neg |= bit;
        inner = rest;
    }
    if let Some(rest) = inner.strip_prefix('|').and_then(|r| r.strip_suffix('|')) {
        inst.mods.abs |= bit;
        inner = rest;
    }
    inst.args.push(arg(inner)?);
    Ok(())
}

fn arg(text: &str) -> Result<Arg, String> {
    if let Some(named) = named(text) {
        return Ok(named);
    }
    if let Some((first, count, half)) = registers(text, 'v') {
        return Ok(Arg::V { first, count, half });
    }
    if let Some((first, count, _)) = registers(text, 's') {
        return scalar(first, count, text);
    }
    if let Some((first, count, _)) = text.strip_prefix("ttm").and_then(|t| registers(t, 'p')) {
        return scalar(first + u16::from(sreg::TTMP0), count, text);
    }
    if text.contains('.') {
        return text.parse().map(|v| Arg::Const(Constant::Float(v))).map_err(|_| format!("`{text}` is no float"));
    }
    let constant =
        if text.contains("0x") { Constant::Bits(number(text)?.cast_unsigned()) } else { Constant::Int(number(text)?) };
    Ok(Arg::Const(constant))
}

fn scalar(first: u16, count: u8, text: &str) -> Result<Arg, String> {
    match u8::try_from(first) {
        Ok(first) if usize::from(first) + usize::from(count) <= sreg::COUNT => Ok(Arg::S { first, count }),
        _ => Err(format!("`{text}` is no scalar register")),
    }
}

fn named(text: &str) -> Option<Arg> {
    let s = |first, count| Some(Arg::S { first, count });
    match text {
        "vcc_lo" => s(sreg::VCC, 1),
        "vcc_hi" => s(sreg::VCC + 1, 1),
        "vcc" => s(sreg::VCC, 2),
        "exec_lo" => s(sreg::EXEC, 1),
        "exec_hi" => s(sreg::EXEC + 1, 1),
        "exec" => s(sreg::EXEC, 2),
        "m0" => s(sreg::M0, 1),
        "null" => s(sreg::NULL, 1),
        "off" => Some(Arg::Off),
        "scc" | "src_scc" => Some(Arg::Special(Special::Scc)),
        "src_vccz" => Some(Arg::Special(Special::Vccz)),
        "src_execz" => Some(Arg::Special(Special::Execz)),
        "src_shared_base" => Some(Arg::Special(Special::SharedBase)),
        "src_shared_limit" => Some(Arg::Special(Special::SharedLimit)),
        "src_private_base" => Some(Arg::Special(Special::PrivateBase)),
        "src_private_limit" => Some(Arg::Special(Special::PrivateLimit)),
        _ => None,
    }
}

/// `v5`, `v[4:7]`, `v5.l`.
fn registers(text: &str, kind: char) -> Option<(u16, u8, Half)> {
    let rest = text.strip_prefix(kind)?;
    let (rest, half) = match (rest.strip_suffix(".l"), rest.strip_suffix(".h")) {
        (Some(rest), _) => (rest, Half::Low),
        (_, Some(rest)) => (rest, Half::High),
        _ => (rest, Half::Whole),
    };
    if let Some(range) = rest.strip_prefix('[') {
        let (first, last) = range.strip_suffix(']')?.split_once(':')?;
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        let count = u8::try_from(last.checked_sub(first)? + 1).ok()?;
        return Some((first, count, half));
    }
    Some((rest.parse().ok()?, 1, half))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> Inst {
        parse(text, 4).unwrap_or_else(|e| unreachable!("{text}: {e}"))
    }

    fn v(first: u16, count: u8) -> Arg {
        Arg::V { first, count, half: Half::Whole }
    }

    #[test]
    fn operands_and_suffixes() {
        let inst = ok("v_cmp_nlt_f32_e64 vcc_lo, 0x42d00000, -|v59|");
        assert_eq!(inst.name, "v_cmp_nlt_f32");
        assert_eq!(inst.args, [Arg::S { first: 106, count: 1 }, Arg::Const(Constant::Bits(0x42d0_0000)), v(59, 1)]);
        assert_eq!((inst.mods.neg, inst.mods.abs), (0b100, 0b100));
        let inst = ok("global_load_b128 v[44:47], v44, s[14:15] offset:-16 th:TH_LOAD_NT scope:SCOPE_DEV");
        assert_eq!(inst.args, [v(44, 4), v(44, 1), Arg::S { first: 14, count: 2 }]);
        assert_eq!((inst.mods.offset, inst.mods.scope, inst.mods.returns), (-16, Scope::Dev, false));
        assert_eq!(ok("v_mov_b32_e32 v0, -1.0").args[1], Arg::Const(Constant::Float(-1.0)));
        assert_eq!(ok("s_mov_b32 s0, ttmp9").args[1], Arg::S { first: 117, count: 1 });
        let half = Arg::V { first: 3, count: 1, half: Half::High };
        assert_eq!(ok("v_add_f16_e32 v3.h, v3.h, v4.l").args[0], half);
    }

    #[test]
    fn permutations() {
        let dpp = ok("v_add_f32_dpp v0, v0, v0 row_xmask:4 row_mask:0xa bank_mask:0xf bound_ctrl:1").mods.dpp;
        let kind = Dpp::RowXmask(4);
        assert_eq!(
            dpp,
            Some(DppControl { kind, row_mask: 10, bank_mask: 15, bound_ctrl: true, fetch_inactive: false })
        );
        let dpp8 = ok("v_mov_b32_dpp v0, v1 dpp8:[7,6,5,4,3,2,1,0] fi:1").mods.dpp;
        assert_eq!(dpp8.map(|d| (d.kind, d.fetch_inactive)), Some((Dpp::Dpp8([7, 6, 5, 4, 3, 2, 1, 0]), true)));
    }

    #[test]
    fn pairs() {
        let inst = ok("v_dual_cndmask_b32 v2, v2, v6 :: v_dual_and_b32 v15, 0x7fffffff, v15");
        assert_eq!((inst.name.as_str(), inst.args.len()), ("v_cndmask_b32", 4));
        assert_eq!(inst.pair.map(|p| p.name), Some("v_and_b32".into()));
    }

    #[test]
    fn not_understood() {
        for text in ["v_mov_b32_e32 v0, q7", "global_load_b32 v0, v1, off scope:SCOPE_MOON", "s_mov_b32 s200, 0"] {
            assert!(parse(text, 4).is_err(), "{text}");
        }
    }
}
