//! Builder of one graph: each method adds a node with its inferred type. Equal nodes are shared.

use std::collections::HashMap;
use std::panic::Location;

use crate::error::IrError;
use crate::graph::{Graph, Node, ValueId};
use crate::infer::infer;
use crate::lines::{GraphLines, SourceLine};
use crate::op::{Binary, Domain, Op, ReduceKind, Unary};
use crate::order::Order;
use crate::types::{DType, Dim, StateType, TensorType, Type};

/// Builds a [`Graph`]. Nodes with the same op and operands are one value.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    known: HashMap<(Op, Vec<ValueId>), ValueId>,
    /// Per node: the caller that declared it first.
    places: Vec<&'static Location<'static>>,
    /// Per body: where its ops were declared.
    inner: Vec<GraphLines>,
}

impl Builder {
    pub fn new(name: &str) -> Self {
        Builder { graph: Graph { name: name.into(), ..Graph::default() }, ..Builder::default() }
    }

    /// Adds a node whose type follows from its operands.
    ///
    /// # Errors
    /// [`IrError::Type`] if a typing rule does not hold.
    #[track_caller]
    pub fn add(&mut self, op: Op, args: &[ValueId]) -> Result<ValueId, IrError> {
        let types: Vec<&Type> = args.iter().map(|a| self.graph.ty(*a)).collect();
        let ty = infer(&op, &types, &self.graph.bodies)?;
        Ok(self.push(op, args, ty))
    }

    /// `(q [R, h, r], state token, ids i32 [R, n]) -> f32 [R, h, r]`: attention over the selected rows, by splits.
    ///
    /// # Errors
    /// As [`Builder::add`].
    #[track_caller]
    pub fn attend(&mut self, scale: f32, [q, state, ids]: [ValueId; 3]) -> Result<ValueId, IrError> {
        let splits = Op::AttendSplits { scale: scale.to_bits(), order: Order::Lanes };
        let splits = self.add(splits, &[q, state, ids])?;
        self.add(Op::AttendCombine, &[splits])
    }

    #[track_caller]
    fn push(&mut self, op: Op, args: &[ValueId], ty: Type) -> ValueId {
        let key = (op, args.to_vec());
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = ValueId(self.graph.nodes.len() as u32);
        self.graph.nodes.push(Node { op: key.0.clone(), args: key.1.clone(), ty });
        self.known.insert(key, id);
        self.places.push(Location::caller());
        id
    }

    pub fn ty(&self, id: ValueId) -> &Type {
        self.graph.ty(id)
    }

    /// Shape of a tensor value; empty for anything else.
    pub fn shape(&self, id: ValueId) -> Vec<Dim> {
        self.ty(id).tensor().map(|t| t.shape.clone()).unwrap_or_default()
    }

    /// Interns a body for `repeat`, with the lines that declare it.
    pub fn repeated(&mut self, body: Builder) -> u32 {
        let lines = body.lines();
        self.intern(body.finish(), lines)
    }

    /// Interns a body for `repeat` that comes without lines.
    pub fn body(&mut self, body: Graph) -> u32 {
        self.intern(body, GraphLines::default())
    }

    fn intern(&mut self, body: Graph, lines: GraphLines) -> u32 {
        if let Some(i) = self.graph.bodies.iter().position(|b| *b == body) {
            return i as u32;
        }
        self.graph.bodies.push(body);
        self.inner.push(lines);
        (self.graph.bodies.len() - 1) as u32
    }

    #[track_caller]
    pub fn input(&mut self, name: &str, ty: TensorType, domain: Domain) -> ValueId {
        self.push(Op::Input { name: name.into(), domain }, &[], Type::Tensor(ty))
    }

    #[track_caller]
    pub fn weight(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.push(Op::Weight { name: name.into() }, &[], Type::Tensor(ty))
    }

    #[track_caller]
    pub fn state(&mut self, name: &str, ty: StateType) -> ValueId {
        self.push(Op::State { name: name.into() }, &[], Type::State(ty))
    }

    #[track_caller]
    pub fn constant(&mut self, x: f32) -> ValueId {
        self.push(Op::ConstF32(x.to_bits()), &[], Type::Tensor(TensorType::plain(DType::F32, vec![])))
    }

    #[track_caller]
    pub fn unary(&mut self, u: Unary, x: ValueId) -> Result<ValueId, IrError> {
        self.add(Op::Unary(u), &[x])
    }

    #[track_caller]
    pub fn binary(&mut self, b: Binary, x: ValueId, y: ValueId) -> Result<ValueId, IrError> {
        self.add(Op::Binary(b), &[x, y])
    }

    /// A cast; none if the value has the dtype already.
    #[track_caller]
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, IrError> {
        if self.ty(x).tensor().and_then(TensorType::dtype) == Some(to) {
            return Ok(x);
        }
        self.add(Op::Cast(to), &[x])
    }

    /// A reshape; none if the value has the shape already.
    #[track_caller]
    pub fn reshape(&mut self, x: ValueId, to: &[Dim]) -> Result<ValueId, IrError> {
        if self.ty(x).tensor().is_some_and(|t| t.shape == to) {
            return Ok(x);
        }
        self.add(Op::Reshape(to.to_vec()), &[x])
    }

    #[track_caller]
    pub fn slice(&mut self, x: ValueId, axis: u32, start: u64, len: u64) -> Result<ValueId, IrError> {
        self.add(Op::Slice { axis, start, len }, &[x])
    }

    /// Sum over one axis in the default order of its extent.
    #[track_caller]
    pub fn sum(&mut self, x: ValueId, axis: u32) -> Result<ValueId, IrError> {
        let n = self.shape(x).get(axis as usize).and_then(|d| d.fixed()).unwrap_or(1);
        self.add(Op::Reduce { kind: ReduceKind::Sum, axis, order: Order::of_sum(n) }, &[x])
    }

    #[track_caller]
    pub fn max_over(&mut self, x: ValueId, axis: u32) -> Result<ValueId, IrError> {
        self.add(Op::Reduce { kind: ReduceKind::Max, axis, order: Order::Sequential }, &[x])
    }

    #[track_caller]
    pub fn matmul(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, IrError> {
        let order = self.ty(w).tensor().map_or(Order::Lanes, Order::of_rows);
        self.add(Op::MatMul { order }, &[x, w])
    }

    pub fn output(&mut self, name: &str, value: ValueId) {
        self.graph.outputs.push((name.into(), value));
    }

    /// Per node: the line of the caller that declared it first.
    pub fn lines(&self) -> GraphLines {
        GraphLines { nodes: self.places.iter().map(|at| SourceLine::from(*at)).collect(), bodies: self.inner.clone() }
    }

    pub fn finish(self) -> Graph {
        self.graph
    }
}
