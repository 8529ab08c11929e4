//! Printing. `Display` of a graph or module is its canonical text.

use std::fmt::{self, Display, Formatter};

use crate::graph::{Graph, Node, ValueId};
use crate::module::{Arg, Call, Module, Source, WeightDecl};
use crate::op::{Domain, Op};
use crate::types::Dim;

/// A quoted string; everything but printable ASCII is escaped, so that no text can look like another.
pub(super) struct Quoted<'a>(pub &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                ' '..='~' => write!(f, "{c}")?,
                _ => write!(f, "\\u{{{:x}}}", u32::from(c))?,
            }
        }
        f.write_str("\"")
    }
}

/// A graph's name: bare where it can be, quoted where it breaks the verifier's rule.
pub(super) struct At<'a>(pub &'a str);

impl Display for At<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bare = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        if !self.0.is_empty() && self.0.bytes().all(bare) {
            write!(f, "@{}", self.0)
        } else {
            write!(f, "@{}", Quoted(self.0))
        }
    }
}

/// An f32 by its bits: the shortest decimal that reads back as the same bits, or the bits of a NaN.
pub(super) struct Float(pub u32);

impl Display for Float {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let x = f32::from_bits(self.0);
        if x.is_nan() { write!(f, "0x{:08x}", self.0) } else { write!(f, "{x:?}") }
    }
}

/// Items between brackets, separated by commas.
struct List<'a, T>(&'a str, &'a [T], &'a str);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        for (i, item) in self.1.iter().enumerate() {
            write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(self.2)
    }
}

impl Display for ValueId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl Display for Domain {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Domain::Normal => f.write_str("normal"),
            Domain::Below(n) => write!(f, "below({n})"),
            Domain::Distinct(n) => write!(f, "distinct({n})"),
            Domain::Ascending(n) => write!(f, "ascending({n})"),
            Domain::Selected => f.write_str("selected"),
            Domain::Unit => f.write_str("unit"),
            Domain::Slots(n) => write!(f, "slots({n})"),
            Domain::RowIndex => f.write_str("row_index"),
        }
    }
}

/// The name of an op and its attributes. `repeat` names its body, which must exist for the text to be read back.
pub(crate) fn write_op(f: &mut Formatter<'_>, op: &Op, bodies: &[Graph]) -> fmt::Result {
    f.write_str(op.name())?;
    match op {
        Op::Input { name, domain } => write!(f, " {} {domain}", Quoted(name)),
        Op::Weight { name } | Op::State { name } => write!(f, " {}", Quoted(name)),
        Op::ConstF32(bits) => write!(f, " {}", Float(*bits)),
        Op::Cast(to) => write!(f, " {}", to.name()),
        Op::Reshape(to) | Op::Broadcast(to) => write!(f, " {}", shape(to)),
        Op::Slice { axis, start, len } => write!(f, " axis {axis} start {start} len {len}"),
        Op::Concat { axis } => write!(f, " axis {axis}"),
        Op::Reduce { axis, order, .. } => write!(f, " axis {axis} {}", order.name()),
        Op::Repeat { body, count } => match bodies.get(*body as usize) {
            Some(b) => write!(f, " {count} {}", At(&b.name)),
            None => write!(f, " {count} body {body}"),
        },
        Op::BatchMatMul { transposed, order } => {
            write!(f, "{} {}", if *transposed { " transposed" } else { "" }, order.name())
        }
        Op::MatMul { order } | Op::GroupedMatMul { order } | Op::DeltaRule { order } => write!(f, " {}", order.name()),
        Op::TopK { k, limit, part } => {
            write!(f, " {k}")?;
            limit.map_or(Ok(()), |l| write!(f, " groups {} kept {}", l.groups, l.kept))?;
            part.map_or(Ok(()), |part| write!(f, " part {part}"))
        }
        Op::Project(i) => write!(f, " {i}"),
        Op::PoolWindow { part } => write!(f, " part {part}"),
        Op::IndexScores { dot_scale, head_scale, order } => {
            write!(f, " dot {} head {} {}", Float(*dot_scale), Float(*head_scale), order.name())
        }
        Op::IndexSelect { budget, pool, tail } => {
            write!(f, " budget {budget} pool {pool}{}", if *tail { " tail" } else { "" })
        }
        Op::AttendSplits { scale, order } => write!(f, " scale {} {}", Float(*scale), order.name()),
        Op::Unary(_) | Op::Binary(_) => Ok(()),
        Op::GatherLast | Op::EmbedRows | Op::GatherRows | Op::AttendCombine => Ok(()),
        Op::CausalConv | Op::ConvUpdate | Op::TokenWrite | Op::TailUpdate | Op::PoolWrite => Ok(()),
    }
}

fn shape(dims: &[Dim]) -> List<'_, Dim> {
    List("[", dims, "]")
}

/// Two spaces for each level of nesting.
struct Indent(usize);

impl Display for Indent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (0..self.0).try_for_each(|_| f.write_str("  "))
    }
}

fn write_node(f: &mut Formatter<'_>, node: &Node, bodies: &[Graph]) -> fmt::Result {
    write_op(f, &node.op, bodies)?;
    let before = if node.args.is_empty() { "" } else { " " };
    writeln!(f, "{}: {}", List(before, &node.args, ""), node.ty)
}

fn write_graph(f: &mut Formatter<'_>, keyword: &str, graph: &Graph, depth: usize) -> fmt::Result {
    writeln!(f, "{}{keyword} {} {{", Indent(depth), At(&graph.name))?;
    for body in &graph.bodies {
        write_graph(f, "body", body, depth + 1)?;
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        write!(f, "{}%{i} = ", Indent(depth + 1))?;
        write_node(f, node, &graph.bodies)?;
    }
    for (name, value) in &graph.outputs {
        writeln!(f, "{}return {} {value}", Indent(depth + 1), Quoted(name))?;
    }
    writeln!(f, "{}}}", Indent(depth))
}

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_graph(f, "graph", self, 0)
    }
}

fn write_source(f: &mut Formatter<'_>, source: &Source) -> fmt::Result {
    let shape = List("[", &source.shape, "]");
    write!(f, "    from {}: {}{shape}", Quoted(&source.tensor), source.dtype.name())?;
    if source.view != source.shape {
        write!(f, " view {}", List("[", &source.view, "]"))?;
    }
    if let Some(s) = &source.slice {
        write!(f, " slice axis {} start {} len {}", s.axis, s.start, s.len)?;
    }
    writeln!(f)
}

fn write_weight(f: &mut Formatter<'_>, weight: &WeightDecl) -> fmt::Result {
    writeln!(f, "  weight {}: {}", Quoted(&weight.name), weight.ty)?;
    weight.sources.iter().try_for_each(|s| write_source(f, s))
}

/// The name of declaration `i`, or its number where there is none: printing shows a broken module as well.
fn reference<T>(list: &[T], i: u32, name: impl Fn(&T) -> &str) -> String {
    list.get(i as usize).map_or_else(|| i.to_string(), |d| Quoted(name(d)).to_string())
}

fn write_call(f: &mut Formatter<'_>, i: usize, call: &Call, m: &Module) -> fmt::Result {
    let body = m.bodies.get(call.body as usize).map_or_else(|| call.body.to_string(), |b| At(&b.name).to_string());
    write!(f, "  call {i} {body}")?;
    if let Some(layer) = call.layer {
        write!(f, " layer {layer}")?;
    }
    let arg = |a: &Arg| match a {
        Arg::Input(i) => format!("input {}", reference(&m.inputs, *i, |d| &d.name)),
        Arg::Result { call, output } => format!("result {call}.{output}"),
    };
    let args: Vec<String> = call.args.iter().map(arg).collect();
    let weights: Vec<String> = call.weights.iter().map(|w| reference(&m.weights, *w, |d| &d.name)).collect();
    let states: Vec<String> = call.states.iter().map(|s| reference(&m.states, *s, |d| &d.name)).collect();
    let [args, weights, states] = [&args, &weights, &states].map(|list| List("(", list, ")"));
    writeln!(f, " {args} weights {weights} states {states}")
}

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "module {} {{", Quoted(&self.name))?;
        for d in &self.inputs {
            writeln!(f, "  input {} {}: {}", Quoted(&d.name), d.domain, d.ty)?;
        }
        self.weights.iter().try_for_each(|w| write_weight(f, w))?;
        for d in &self.states {
            writeln!(f, "  state {}: {}", Quoted(&d.name), d.ty)?;
        }
        self.bodies.iter().try_for_each(|b| write_graph(f, "body", b, 1))?;
        self.calls.iter().enumerate().try_for_each(|(i, c)| write_call(f, i, c, self))?;
        for d in &self.outputs {
            writeln!(f, "  output {} = result {}.{}", Quoted(&d.name), d.call, d.output)?;
        }
        writeln!(f, "}}")
    }
}
