//! Parsing of operations and their attributes: the inverse of `print::write_op`.

use std::collections::HashMap;

use super::parse::Parser;
use crate::error::IrError;
use crate::op::{Binary, Domain, GroupLimit, Op, ReduceKind, Unary};
use crate::order::Order;

type Parsed<T> = Result<T, IrError>;

impl Parser<'_> {
    /// An op up to its operands.
    pub fn op(&mut self, bodies: &HashMap<String, u32>) -> Parsed<Op> {
        let mut simple = None;
        let name = self.word("the name of an operation", |w| {
            simple = simple_op(w);
            simple.as_ref().map(Op::name).or_else(|| ATTRIBUTED.iter().copied().find(|n| *n == w))
        })?;
        match simple {
            Some(op) => Ok(op),
            None => self.attributed(name, bodies),
        }
    }

    /// An op with attributes, after its name.
    fn attributed(&mut self, name: &str, bodies: &HashMap<String, u32>) -> Parsed<Op> {
        Ok(match name {
            "input" => Op::Input { name: self.string()?, domain: self.domain()? },
            "weight" => Op::Weight { name: self.string()? },
            "state" => Op::State { name: self.string()? },
            "const" => Op::ConstF32(self.float()?),
            "cast" => Op::Cast(self.dtype()?),
            "reshape" => Op::Reshape(self.shape()?),
            "broadcast" => Op::Broadcast(self.shape()?),
            "slice" => {
                let (axis, start, len) = self.slice()?;
                Op::Slice { axis, start, len }
            }
            "concat" => Op::Concat { axis: self.labelled32("axis")? },
            "sum" => Op::Reduce { kind: ReduceKind::Sum, axis: self.labelled32("axis")?, order: self.order()? },
            "reduce_max" => Op::Reduce { kind: ReduceKind::Max, axis: self.labelled32("axis")?, order: self.order()? },
            "repeat" => {
                let count = self.number32()?;
                Op::Repeat { body: self.graph_ref(bodies)?, count }
            }
            "matmul" => Op::MatMul { order: self.order()? },
            "batch_matmul" => Op::BatchMatMul { transposed: self.try_word("transposed")?, order: self.order()? },
            "grouped_matmul" => Op::GroupedMatMul { order: self.order()? },
            "top_k" => {
                let k = self.number()?;
                let limit = if self.try_word("groups")? {
                    Some(GroupLimit { groups: self.number()?, kept: self.labelled("kept")? })
                } else {
                    None
                };
                let part = if self.try_word("part")? { Some(self.number()?) } else { None };
                Op::TopK { k, limit, part }
            }
            "delta_rule" => Op::DeltaRule { order: self.order()? },
            "project" => Op::Project(self.number32()?),
            "pool_window" => Op::PoolWindow { part: self.labelled32("part")? },
            "index_scores" => {
                let (dot_scale, head_scale) = (self.labelled_float("dot")?, self.labelled_float("head")?);
                Op::IndexScores { dot_scale, head_scale, order: self.order()? }
            }
            "index_select" => {
                let (budget, pool) = (self.labelled("budget")?, self.labelled("pool")?);
                Op::IndexSelect { budget, pool, tail: self.try_word("tail")? }
            }
            "attend_splits" => Op::AttendSplits { scale: self.labelled_float("scale")?, order: self.order()? },
            _ => return Err(self.expected("the name of an operation")),
        })
    }

    fn labelled(&mut self, label: &str) -> Parsed<u64> {
        self.keyword(label)?;
        self.number()
    }

    fn labelled32(&mut self, label: &str) -> Parsed<u32> {
        self.keyword(label)?;
        self.number32()
    }

    fn labelled_float(&mut self, label: &str) -> Parsed<u32> {
        self.keyword(label)?;
        self.float()
    }

    fn order(&mut self) -> Parsed<Order> {
        // `Order::parse` is generous with leading zeros; the text has one form.
        self.word("an order: sequential, lanes, splits or strided and a power of two", |w| {
            Order::parse(w).filter(|o| o.name() == w)
        })
    }

    /// The bits of an f32.
    fn float(&mut self) -> Parsed<u32> {
        self.word("an f32: a decimal, inf, -inf or 0x and eight hex digits", float_bits)
    }

    pub fn domain(&mut self) -> Parsed<Domain> {
        enum Head {
            Plain(Domain),
            Counted(fn(u64) -> Domain),
        }
        let head = self.word("a domain", |w| {
            Some(match w {
                "normal" => Head::Plain(Domain::Normal),
                "selected" => Head::Plain(Domain::Selected),
                "unit" => Head::Plain(Domain::Unit),
                "row_index" => Head::Plain(Domain::RowIndex),
                "below" => Head::Counted(Domain::Below),
                "distinct" => Head::Counted(Domain::Distinct),
                "ascending" => Head::Counted(Domain::Ascending),
                "slots" => Head::Counted(Domain::Slots),
                _ => return None,
            })
        })?;
        match head {
            Head::Plain(d) => Ok(d),
            Head::Counted(f) => {
                self.punct('(')?;
                let n = self.number()?;
                self.punct(')')?;
                Ok(f(n))
            }
        }
    }
}

const ATTRIBUTED: [&str; 22] = [
    "input",
    "weight",
    "state",
    "const",
    "cast",
    "reshape",
    "broadcast",
    "slice",
    "concat",
    "sum",
    "reduce_max",
    "repeat",
    "matmul",
    "batch_matmul",
    "grouped_matmul",
    "top_k",
    "delta_rule",
    "project",
    "pool_window",
    "index_scores",
    "index_select",
    "attend_splits",
];

/// Ops without attributes.
fn simple_op(w: &str) -> Option<Op> {
    Some(match w {
        "neg" => Op::Unary(Unary::Neg),
        "abs" => Op::Unary(Unary::Abs),
        "exp" => Op::Unary(Unary::Exp),
        "log" => Op::Unary(Unary::Log),
        "log1p" => Op::Unary(Unary::Log1p),
        "sqrt" => Op::Unary(Unary::Sqrt),
        "rsqrt" => Op::Unary(Unary::Rsqrt),
        "sigmoid" => Op::Unary(Unary::Sigmoid),
        "add" => Op::Binary(Binary::Add),
        "sub" => Op::Binary(Binary::Sub),
        "mul" => Op::Binary(Binary::Mul),
        "div" => Op::Binary(Binary::Div),
        "min" => Op::Binary(Binary::Min),
        "max" => Op::Binary(Binary::Max),
        "attend_combine" => Op::AttendCombine,
        "gather_last" => Op::GatherLast,
        "embed_rows" => Op::EmbedRows,
        "gather_rows" => Op::GatherRows,
        "causal_conv" => Op::CausalConv,
        "conv_update" => Op::ConvUpdate,
        "token_write" => Op::TokenWrite,
        "tail_update" => Op::TailUpdate,
        "pool_write" => Op::PoolWrite,
        _ => return None,
    })
}

fn float_bits(w: &str) -> Option<u32> {
    if let Some(hex) = w.strip_prefix("0x") {
        let digits = hex.len() == 8 && hex.bytes().all(|b| b.is_ascii_hexdigit());
        return digits.then(|| u32::from_str_radix(hex, 16).ok())?;
    }
    let x: f32 = match w {
        "inf" => f32::INFINITY,
        "-inf" => f32::NEG_INFINITY,
        // A decimal that overflows does not mean infinity, and a NaN has no decimal.
        _ => w.parse().ok().filter(|x: &f32| x.is_finite())?,
    };
    Some(x.to_bits())
}
#[cfg(test)]
mod tests {
    use super::super::parse::number;
    use super::*;

    #[test]
    fn floats_are_exact() {
        for bits in [0, 0x8000_0000, 1, 0x007f_ffff, 0x0080_0000, 0x3f80_0000, 0x358637bd, 0x7f7f_ffff, 0x7f80_0000] {
            for bits in [bits, bits ^ 0x8000_0000] {
                let text = super::super::print::Float(bits).to_string();
                assert_eq!(float_bits(&text), Some(bits), "{text}");
            }
        }
        assert_eq!(float_bits("0x7fc00001"), Some(0x7fc0_0001));
        assert_eq!(super::super::print::Float(0x7fc0_0001).to_string(), "0x7fc00001");
        for wrong in ["NaN", "1e999", "infinity", "0x1", "0x+1234567", "", "-", "1_0"] {
            assert_eq!(float_bits(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_have_one_form() {
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        for wrong in ["", "18446744073709551616", "-1", "+1", "01", "1.0", "0x1"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
