//! Parsing: recursive descent over one token of lookahead. Nothing here trusts the text: every number is checked, and
//! nesting and node counts are bounded before anything is built.

use std::collections::HashMap;

use super::lex::{Lexer, Token, error_at};
use super::print::Quoted;
use super::{MAX_TEXT, Unit};
use crate::error::IrError;
use crate::graph::{Graph, Node, ValueId};
use crate::infer::infer;
use crate::lines::{GraphLines, SourceLine};
use crate::module::{Arg, Call, InputDecl, Module, ModuleOutput, Source, SourceSlice, StateDecl, WeightDecl};
use crate::op::Op;
use crate::types::{DType, Dim, Format, Packing, ScaleType, StateKind, StateType, TensorType, Type};
use crate::verify::{MAX_NESTING, MAX_NODES, MAX_REPEAT_NODES};

type Parsed<T> = Result<T, IrError>;

pub(super) struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    token: Token<'a>,
    /// Byte where `token` starts.
    start: usize,
    nodes: usize,
}

/// Bytes of the text at which a graph's nodes start, and those of its bodies.
#[derive(Default)]
pub(super) struct Spots {
    nodes: Vec<usize>,
    bodies: Vec<Spots>,
}

impl Spots {
    /// `ends`: where lines of the text end.
    pub fn lines(&self, ends: &[usize], file: &str) -> GraphLines {
        // The text has fewer lines than bytes, of which there are at most MAX_TEXT.
        let line = |at: &usize| ends.partition_point(|end| end < at) as u32 + 1;
        GraphLines {
            nodes: self.nodes.iter().map(|at| SourceLine { file: file.into(), line: line(at) }).collect(),
            bodies: self.bodies.iter().map(|b| b.lines(ends, file)).collect(),
        }
    }
}

/// What the declarations of a module are called, for the calls that name them.
#[derive(Default)]
struct Names {
    inputs: HashMap<String, u32>,
    weights: HashMap<String, u32>,
    states: HashMap<String, u32>,
    bodies: HashMap<String, u32>,
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Parsed<Self> {
        if text.len() > MAX_TEXT {
            let found = format!("{} bytes", text.len());
            return Err(error_at(text, 0, format!("a text of at most {MAX_TEXT} bytes"), found));
        }
        let mut lexer = Lexer::new(text);
        let (token, start) = lexer.next()?;
        Ok(Parser { text, lexer, token, start, nodes: 0 })
    }

    /// Parses all of the text by `f`.
    pub fn whole<T>(mut self, f: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let value = f(&mut self)?;
        if self.token == Token::End { Ok(value) } else { Err(self.expected("the end of the text")) }
    }

    // Tokens.

    pub fn expected(&self, what: impl Into<String>) -> IrError {
        self.expected_at(self.start, what, self.token.show())
    }

    fn expected_at(&self, at: usize, what: impl Into<String>, found: impl Into<String>) -> IrError {
        error_at(self.text, at, what, found)
    }

    fn advance(&mut self) -> Parsed<Token<'a>> {
        let (token, start) = self.lexer.next()?;
        self.start = start;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn is_punct(&self, c: char) -> bool {
        self.token == Token::Punct(c)
    }

    pub fn punct(&mut self, c: char) -> Parsed<()> {
        if !self.is_punct(c) {
            return Err(self.expected(format!("`{c}`")));
        }
        self.advance().map(|_| ())
    }

    fn is_word(&self, w: &str) -> bool {
        self.token == Token::Word(w)
    }

    /// Takes the word if it comes next.
    pub fn try_word(&mut self, w: &str) -> Parsed<bool> {
        if !self.is_word(w) {
            return Ok(false);
        }
        self.advance().map(|_| true)
    }

    pub fn keyword(&mut self, w: &str) -> Parsed<()> {
        if self.try_word(w)? { Ok(()) } else { Err(self.expected(format!("`{w}`"))) }
    }

    /// A word that `f` understands.
    pub fn word<T>(&mut self, what: &str, f: impl FnOnce(&str) -> Option<T>) -> Parsed<T> {
        match self.token {
            Token::Word(w) => match f(w) {
                Some(x) => self.advance().map(|_| x),
                None => Err(self.expected(what)),
            },
            _ => Err(self.expected(what)),
        }
    }

    pub fn number(&mut self) -> Parsed<u64> {
        self.word("a number below 2^64", number)
    }

    pub fn number32(&mut self) -> Parsed<u32> {
        self.word("a number below 2^32", |w| number(w)?.try_into().ok())
    }

    pub fn string(&mut self) -> Parsed<String> {
        match &self.token {
            Token::Str(_) => match self.advance()? {
                Token::Str(s) => Ok(s),
                _ => Err(self.expected("a quoted name")),
            },
            _ => Err(self.expected("a quoted name")),
        }
    }

    fn at_name(&mut self) -> Parsed<String> {
        let name = match &self.token {
            Token::At(s) if !s.is_empty() => (*s).to_string(),
            Token::AtStr(s) => s.clone(),
            _ => return Err(self.expected("`@` and a graph's name")),
        };
        self.advance().map(|_| name)
    }

    /// `@name` of a known graph.
    pub fn graph_ref(&mut self, bodies: &HashMap<String, u32>) -> Parsed<u32> {
        let (at, found) = (self.start, self.token.show());
        let name = self.at_name()?;
        bodies.get(&name).copied().ok_or_else(|| self.expected_at(at, "the name of an earlier `body`", found))
    }

    /// Items up to `close`, separated by commas; the opening bracket is taken already.
    fn items<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        if self.is_punct(close) {
            return self.advance().map(|_| items);
        }
        loop {
            items.push(item(self)?);
            if self.is_punct(close) {
                return self.advance().map(|_| items);
            }
            if !self.is_punct(',') {
                return Err(self.expected(format!("`,` or `{close}`")));
            }
            self.advance()?;
        }
    }

    fn list<T>(&mut self, open: char, close: char, item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.punct(open)?;
        self.items(close, item)
    }

    // Types.

    pub fn dtype(&mut self) -> Parsed<DType> {
        self.word("a dtype", dtype)
    }

    pub fn shape(&mut self) -> Parsed<Vec<Dim>> {
        self.list('[', ']', |p| {
            p.word("an extent: a number, R, B, L or P", |w| match w {
                "R" => Some(Dim::Rows),
                "B" => Some(Dim::Seqs),
                "L" => Some(Dim::Logits),
                "P" => Some(Dim::Pools),
                _ => number(w).map(Dim::Fixed),
            })
        })
    }

    fn extents(&mut self) -> Parsed<Vec<u64>> {
        self.list('[', ']', Self::number)
    }

    fn tensor_type(&mut self) -> Parsed<TensorType> {
        let format = self.word("a tensor type", format)?;
        Ok(TensorType { format, shape: self.shape()? })
    }

    fn state_type(&mut self) -> Parsed<StateType> {
        let (mut kind, dtype) = self.word("a state type", state_head)?;
        let at = self.start;
        let list = self.extents()?;
        match (&mut kind, list.as_slice()) {
            (StateKind::Slot { shape }, _) => *shape = list,
            (StateKind::Token { width } | StateKind::Pool { width, .. } | StateKind::Tail { width, .. }, [n]) => {
                *width = *n
            }
            _ => return Err(self.expected_at(at, "one extent, the width", format!("{} extents", list.len()))),
        }
        Ok(StateType { kind, dtype })
    }

    /// Any type; a tuple holds no tuples.
    fn any_type(&mut self) -> Parsed<Type> {
        if self.is_punct('(') {
            return self.list('(', ')', Self::plain_type).map(Type::Tuple);
        }
        self.plain_type()
    }

    fn plain_type(&mut self) -> Parsed<Type> {
        match self.token {
            Token::Word(w) if state_head(w).is_some() => self.state_type().map(Type::State),
            Token::Word(w) if format(w).is_some() => self.tensor_type().map(Type::Tensor),
            _ => Err(self.expected("a type")),
        }
    }

    // Graphs.

    pub fn unit(&mut self) -> Parsed<Unit> {
        match self.token {
            Token::Word("module") => self.module().map(Unit::Module),
            Token::Word("graph") => self.graph().map(Unit::Graph),
            _ => Err(self.expected("`module` or `graph`")),
        }
    }

    pub fn graph(&mut self) -> Parsed<Graph> {
        self.keyword("graph")?;
        self.graph_rest(0).map(|(graph, _)| graph)
    }

    /// A graph from its name on; `depth` counts the bodies around it.
    fn graph_rest(&mut self, depth: usize) -> Parsed<(Graph, Spots)> {
        let mut graph = Graph { name: self.at_name()?, ..Graph::default() };
        let mut spots = Spots::default();
        let mut bodies = HashMap::new();
        self.punct('{')?;
        while self.is_word("body") {
            if depth == MAX_NESTING {
                return Err(self.expected(format!("bodies nested at most {MAX_NESTING} deep")));
            }
            self.advance()?;
            let at = self.start;
            let (body, inner) = self.graph_rest(depth + 1)?;
            self.declare(&mut bodies, &body.name, at)?;
            graph.bodies.push(body);
            spots.bodies.push(inner);
        }
        while matches!(self.token, Token::Value(_)) {
            spots.nodes.push(self.start);
            let node = self.node(&graph, &bodies, depth)?;
            graph.nodes.push(node);
        }
        while self.try_word("return")? {
            let name = self.string()?;
            let value = self.value(graph.nodes.len())?;
            graph.outputs.push((name, value));
        }
        if !self.is_punct('}') {
            let first = if graph.outputs.is_empty() { "a value `%`, " } else { "" };
            return Err(self.expected(format!("{first}`return` or `}}`")));
        }
        self.advance()?;
        Ok((graph, spots))
    }

    /// A value that stands before value number `before`.
    fn value(&mut self, before: usize) -> Parsed<ValueId> {
        let Token::Value(w) = self.token else { return Err(self.expected("a value `%`")) };
        match number(w) {
            Some(n) if n < before as u64 => self.advance().map(|_| ValueId(n as u32)),
            _ => Err(self.expected(format!("a value before `%{before}`"))),
        }
    }

    fn node(&mut self, graph: &Graph, bodies: &HashMap<String, u32>, depth: usize) -> Parsed<Node> {
        let id = graph.nodes.len();
        let Token::Value(w) = self.token else { return Err(self.expected("a value `%`")) };
        // The number is written for the reader, who should not have to trust it.
        if number(w) != Some(id as u64) {
            return Err(self.expected(format!("`%{id}`")));
        }
        let most = if depth > 0 { MAX_REPEAT_NODES } else { MAX_NODES };
        if id >= most || self.nodes >= MAX_NODES {
            return Err(self.expected(format!("at most {most} nodes in a graph, {MAX_NODES} in a text")));
        }
        self.nodes += 1;
        self.advance()?;
        self.punct('=')?;
        let at = self.start;
        let op = self.op(bodies)?;
        let args = self.operands(id)?;
        if !self.is_punct(':') {
            return Err(self.expected(if args.is_empty() { "a value or `:`" } else { "`,` or `:`" }));
        }
        self.advance()?;
        let ty = self.node_type(graph, &op, &args, at)?;
        Ok(Node { op, args, ty })
    }

    fn operands(&mut self, before: usize) -> Parsed<Vec<ValueId>> {
        let mut args = Vec::new();
        if matches!(self.token, Token::Value(_)) {
            args.push(self.value(before)?);
            while self.is_punct(',') {
                self.advance()?;
                args.push(self.value(before)?);
            }
        }
        Ok(args)
    }

    /// The printed type: given for a leaf, compared with the inferred one for anything else.
    fn node_type(&mut self, graph: &Graph, op: &Op, args: &[ValueId], at: usize) -> Parsed<Type> {
        match op {
            Op::Input { .. } | Op::Weight { .. } => return self.tensor_type().map(Type::Tensor),
            Op::State { .. } => return self.state_type().map(Type::State),
            _ => {}
        }
        let types: Vec<&Type> = args.iter().map(|a| graph.ty(*a)).collect();
        let inferred = infer(op, &types, &graph.bodies).map_err(|e| self.locate(e, graph.nodes.len(), at))?;
        let at = self.start;
        let printed = self.any_type()?;
        if printed != inferred {
            return Err(self.expected_at(at, format!("{inferred}, the type of the operation"), printed.to_string()));
        }
        Ok(inferred)
    }

    /// A typing error with its value and line.
    fn locate(&self, e: IrError, id: usize, at: usize) -> IrError {
        match (e, error_at(self.text, at, "", "")) {
            (IrError::Type { rule, op, args, found, hint }, IrError::Parse { line, .. }) => {
                IrError::Type { rule, op: format!("%{id} = {op}, line {line}"), args, found, hint }
            }
            (e, _) => e,
        }
    }

    // Modules.

    pub fn module(&mut self) -> Parsed<Module> {
        self.module_with_spots().map(|(module, _)| module)
    }

    /// A module, and where its bodies' nodes are.
    pub fn module_with_spots(&mut self) -> Parsed<(Module, Vec<Spots>)> {
        let mut spots = Vec::new();
        self.keyword("module")?;
        let mut m = Module { name: self.string()?, ..Module::default() };
        let mut names = Names::default();
        self.punct('{')?;
        while self.is_word("input") {
            let decl = self.input_decl(&mut names)?;
            m.inputs.push(decl);
        }
        while self.is_word("weight") {
            let decl = self.weight_decl(&mut names)?;
            m.weights.push(decl);
        }
        while self.is_word("state") {
            let name = self.declared_name(&mut names.states)?;
            self.punct(':')?;
            m.states.push(StateDecl { name, ty: self.state_type()? });
        }
        while self.try_word("body")? {
            let at = self.start;
            let (body, inner) = self.graph_rest(0)?;
            self.declare(&mut names.bodies, &body.name, at)?;
            m.bodies.push(body);
            spots.push(inner);
        }
        while self.is_word("call") {
            let call = self.call(m.calls.len(), &names)?;
            m.calls.push(call);
        }
        while self.try_word("output")? {
            let name = self.string()?;
            self.punct('=')?;
            self.keyword("result")?;
            let (call, output) = self.result_ref()?;
            m.outputs.push(ModuleOutput { name, call, output });
        }
        if !self.is_punct('}') {
            return Err(self.expected("`input`, `weight`, `state`, `body`, `call`, `output` (in this order) or `}`"));
        }
        self.advance()?;
        Ok((m, spots))
    }

    fn declare(&self, names: &mut HashMap<String, u32>, name: &str, at: usize) -> Parsed<()> {
        let n = names.len() as u32;
        match names.insert(name.to_string(), n) {
            None => Ok(()),
            Some(_) => Err(self.expected_at(at, "a new name", format!("{} again", Quoted(name)))),
        }
    }

    /// The name after a declaration's keyword.
    fn declared_name(&mut self, names: &mut HashMap<String, u32>) -> Parsed<String> {
        self.advance()?;
        let at = self.start;
        let name = self.string()?;
        self.declare(names, &name, at)?;
        Ok(name)
    }

    fn input_decl(&mut self, names: &mut Names) -> Parsed<InputDecl> {
        let name = self.declared_name(&mut names.inputs)?;
        let domain = self.domain()?;
        self.punct(':')?;
        Ok(InputDecl { name, ty: self.tensor_type()?, domain })
    }

    fn weight_decl(&mut self, names: &mut Names) -> Parsed<WeightDecl> {
        let name = self.declared_name(&mut names.weights)?;
        self.punct(':')?;
        let mut decl = WeightDecl { name, ty: self.tensor_type()?, sources: Vec::new() };
        while self.try_word("from")? {
            decl.sources.push(self.source()?);
        }
        Ok(decl)
    }

    fn source(&mut self) -> Parsed<Source> {
        let tensor = self.string()?;
        self.punct(':')?;
        let dtype = self.dtype()?;
        let shape = self.extents()?;
        let view = if self.try_word("view")? { self.extents()? } else { shape.clone() };
        let slice = if self.try_word("slice")? {
            let (axis, start, len) = self.slice()?;
            Some(SourceSlice { axis, start, len })
        } else {
            None
        };
        Ok(Source { tensor, dtype, shape, view, slice })
    }

    /// `axis a start b len c`.
    pub fn slice(&mut self) -> Parsed<(u32, u64, u64)> {
        self.keyword("axis")?;
        let axis = self.number32()?;
        self.keyword("start")?;
        let start = self.number()?;
        self.keyword("len")?;
        Ok((axis, start, self.number()?))
    }

    fn result_ref(&mut self) -> Parsed<(u32, u32)> {
        self.word("CALL.OUTPUT, two numbers", |w| {
            let (call, output) = w.split_once('.')?;
            Some((number(call)?.try_into().ok()?, number(output)?.try_into().ok()?))
        })
    }

    fn call(&mut self, i: usize, names: &Names) -> Parsed<Call> {
        self.keyword("call")?;
        if !matches!(self.token, Token::Word(w) if number(w) == Some(i as u64)) {
            return Err(self.expected(format!("`{i}`, the number of the call")));
        }
        self.advance()?;
        let body = self.graph_ref(&names.bodies)?;
        let layer = if self.try_word("layer")? { Some(self.number32()?) } else { None };
        let args = self.list('(', ')', |p| p.arg(names))?;
        self.keyword("weights")?;
        let weights = self.list('(', ')', |p| p.decl_ref(&names.weights, "weight"))?;
        self.keyword("states")?;
        let states = self.list('(', ')', |p| p.decl_ref(&names.states, "state"))?;
        Ok(Call { body, layer, args, weights, states })
    }

    fn arg(&mut self, names: &Names) -> Parsed<Arg> {
        if self.try_word("input")? {
            return self.decl_ref(&names.inputs, "input").map(Arg::Input);
        }
        if self.try_word("result")? {
            let (call, output) = self.result_ref()?;
            return Ok(Arg::Result { call, output });
        }
        Err(self.expected("`input` or `result`"))
    }

    fn decl_ref(&mut self, names: &HashMap<String, u32>, what: &str) -> Parsed<u32> {
        let (at, found) = (self.start, self.token.show());
        let name = self.string()?;
        let i = names.get(&name).copied();
        i.ok_or_else(|| self.expected_at(at, format!("the name of a declared {what}"), found))
    }
}

/// A number in its only form: digits without a leading zero.
pub(super) fn number(w: &str) -> Option<u64> {
    let canonical = w == "0" || !w.starts_with('0');
    (canonical && w.bytes().all(|b| b.is_ascii_digit())).then(|| w.parse().ok())?
}

fn number32(w: &str) -> Option<u32> {
    number(w)?.try_into().ok()
}

fn dtype(w: &str) -> Option<DType> {
    [DType::F32, DType::Bf16, DType::F16, DType::F8E4m3, DType::I32, DType::Bool].into_iter().find(|d| d.name() == w)
}

/// The part of a tensor type before its shape.
fn format(w: &str) -> Option<Format> {
    let int4 = |g: &str, packing| {
        let (g, scales) = match g.strip_suffix(ScaleType::Bf16.suffix()) {
            Some(g) => (g, ScaleType::Bf16),
            None => (g, ScaleType::F16),
        };
        Some(Format::Int4 { group: number32(g)?, packing, scales })
    };
    if let Some(g) = w.strip_prefix("int4.gptq.g") {
        return int4(g, Packing::GptqColumns);
    }
    if let Some(g) = w.strip_prefix("int4.rows.g") {
        return int4(g, Packing::Rows);
    }
    if let Some((rows, cols)) = w.strip_prefix("f8e4m3.block").and_then(|b| b.split_once('x')) {
        return Some(Format::F8Block { rows: number32(rows)?, cols: number32(cols)? });
    }
    dtype(w).map(Format::Plain)
}

/// The part of a state type before its extents; shape and width are filled in from those.
fn state_head(w: &str) -> Option<(StateKind, DType)> {
    let (kind, d) = w.split_once('.')?;
    let kind = match kind {
        "slot" => StateKind::Slot { shape: Vec::new() },
        "token" => StateKind::Token { width: 0 },
        _ => match (kind.strip_prefix("pool"), kind.strip_prefix("tail")) {
            (Some(pool), _) => StateKind::Pool { width: 0, pool: number(pool)? },
            (_, Some(pool)) => StateKind::Tail { pool: number(pool)?, width: 0 },
            _ => return None,
        },
    };
    Some((kind, dtype(d)?))
}
