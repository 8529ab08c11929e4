//! A writer for LLVM's text form.
//!
//! Text rather than the builder API: one line serves scalars and vectors of any width, LLVM's parser checks each line
//! and answers with an error instead of an assertion, and the module that LLVM saw can be printed as it is.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

/// An LLVM type: a scalar (`lanes == 0`) or a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lty {
    pub elem: &'static str,
    pub lanes: u32,
}

impl Lty {
    pub(crate) const fn scalar(elem: &'static str) -> Self {
        Self { elem, lanes: 0 }
    }

    pub(crate) const fn vector(elem: &'static str, lanes: u32) -> Self {
        Self { elem, lanes }
    }

    /// The same shape with another element.
    pub(crate) const fn of(self, elem: &'static str) -> Self {
        Self { elem, lanes: self.lanes }
    }

    /// A constant of this type with every element `c`.
    pub(crate) fn splat(self, c: impl Display) -> String {
        if self.lanes == 0 { c.to_string() } else { format!("splat ({} {c})", self.elem) }
    }

    /// The suffix of an overloaded intrinsic.
    pub(crate) fn suffix(self) -> String {
        let elem = match self.elem {
            "float" => "f32",
            "half" => "f16",
            other => other,
        };
        if self.lanes == 0 { elem.to_owned() } else { format!("v{}{elem}", self.lanes) }
    }
}

impl Display for Lty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes == 0 { f.write_str(self.elem) } else { write!(f, "<{} x {}>", self.lanes, self.elem) }
    }
}

/// An f32 constant with these bits.
pub(crate) fn f32_bits(bits: u32) -> String {
    format!("bitcast (i32 {bits} to float)")
}

/// A vector constant of i32.
pub(crate) fn i32_vector(values: impl Iterator<Item = u32>) -> String {
    let items: Vec<String> = values.map(|v| format!("i32 {v}")).collect();
    format!("<{}>", items.join(", "))
}

/// A loop that [`Ir::begin_loop`] opened.
pub(crate) struct Loop {
    /// The i32 index.
    pub index: String,
    phi: usize,
    entry: String,
    head: String,
    exit: String,
}

/// One function under construction, and the module around it.
#[derive(Default)]
pub(crate) struct Ir {
    /// Lines before the function.
    globals: Vec<String>,
    declares: BTreeSet<String>,
    /// Lines of the entry block: stack slots and what is computed once.
    entry: Vec<String>,
    body: Vec<String>,
    next: u32,
    block: String,
}

impl Ir {
    pub(crate) fn new() -> Self {
        Self { block: "start".to_owned(), ..Self::default() }
    }

    fn name(&mut self) -> String {
        self.next += 1;
        format!("%t{}", self.next)
    }

    /// Appends `result = rhs`, gives the result's name.
    pub(crate) fn inst(&mut self, rhs: impl Display) -> String {
        let name = self.name();
        self.body.push(format!("  {name} = {rhs}"));
        name
    }

    /// The same with a name of the caller's.
    pub(crate) fn named(&mut self, name: &str, rhs: impl Display) {
        self.body.push(format!("  {name} = {rhs}"));
    }

    /// Appends a line without a result.
    pub(crate) fn line(&mut self, text: impl Display) {
        self.body.push(format!("  {text}"));
    }

    /// Appends `result = rhs` to the entry block.
    pub(crate) fn entry_inst(&mut self, rhs: impl Display) -> String {
        let name = self.name();
        self.entry.push(format!("  {name} = {rhs}"));
        name
    }

    /// The same with a name of the caller's.
    pub(crate) fn entry_named(&mut self, name: &str, rhs: impl Display) {
        self.entry.push(format!("  {name} = {rhs}"));
    }

    /// Appends a line before the function.
    pub(crate) fn global(&mut self, text: impl Display) {
        self.globals.push(text.to_string());
    }

    /// Calls a function that is declared on the way.
    pub(crate) fn call(&mut self, ret: impl Display, name: &str, args: &[(String, String)]) -> String {
        let rhs = self.call_text(ret, name, args);
        self.inst(rhs)
    }

    /// The same for a function without a result.
    pub(crate) fn call_void(&mut self, name: &str, args: &[(String, String)]) {
        let line = self.call_text("void", name, args);
        self.line(line);
    }

    fn call_text(&mut self, ret: impl Display, name: &str, args: &[(String, String)]) -> String {
        let types: Vec<&str> = args.iter().map(|(ty, _)| ty.as_str()).collect();
        self.declares.insert(format!("declare {ret} @{name}({})", types.join(", ")));
        let args: Vec<String> = args.iter().map(|(ty, value)| format!("{ty} {value}")).collect();
        format!("call {ret} @{name}({})", args.join(", "))
    }

    /// A stack slot in the entry block.
    pub(crate) fn alloca(&mut self, ty: impl Display, align: u32) -> String {
        self.entry_inst(format!("alloca {ty}, align {align}"))
    }

    /// A fresh label.
    pub(crate) fn label(&mut self, stem: &str) -> String {
        self.next += 1;
        format!("{stem}{}", self.next)
    }

    /// The block that lines go to.
    pub(crate) fn block(&self) -> &str {
        &self.block
    }

    /// Starts a block; the one before must have been ended.
    pub(crate) fn start(&mut self, label: &str) {
        self.body.push(format!("{label}:"));
        label.clone_into(&mut self.block);
    }

    pub(crate) fn br(&mut self, label: &str) {
        self.line(format_args!("br label %{label}"));
    }

    pub(crate) fn cond_br(&mut self, cond: &str, yes: &str, no: &str) {
        self.line(format_args!("br i1 {cond}, label %{yes}, label %{no}"));
    }

    /// A place for a line that is known later.
    pub(crate) fn reserve(&mut self) -> usize {
        self.body.push(String::new());
        self.body.len() - 1
    }

    pub(crate) fn fill(&mut self, place: usize, line: impl Display) {
        if let Some(slot) = self.body.get_mut(place) {
            *slot = format!("  {line}");
        }
    }

    /// Opens `for index in 0..end` (i32).
    pub(crate) fn begin_loop(&mut self, end: &str) -> Loop {
        let (head, body, exit) = (self.label("head"), self.label("body"), self.label("exit"));
        let entry = self.block.clone();
        self.br(&head);
        self.start(&head);
        let phi = self.reserve();
        let index = self.name();
        let more = self.inst(format_args!("icmp slt i32 {index}, {end}"));
        self.cond_br(&more, &body, &exit);
        self.start(&body);
        Loop { index, phi, entry, head, exit }
    }

    /// Closes it.
    pub(crate) fn end_loop(&mut self, l: &Loop) {
        let next = self.inst(format_args!("add i32 {}, 1", l.index));
        let latch = self.block.clone();
        self.br(&l.head);
        let phi = format!("{} = phi i32 [ 0, %{} ], [ {next}, %{latch} ]", l.index, l.entry);
        self.fill(l.phi, phi);
        self.start(&l.exit);
    }

    /// `shufflevector` with this mask.
    pub(crate) fn shuffle(&mut self, ty: Lty, a: &str, b: &str, mask: impl Iterator<Item = u32>) -> String {
        let mask: Vec<u32> = mask.collect();
        let mask_ty = Lty::vector("i32", u32::try_from(mask.len()).unwrap_or(u32::MAX));
        let mask = i32_vector(mask.into_iter());
        self.inst(format_args!("shufflevector {ty} {a}, {ty} {b}, {mask_ty} {mask}"))
    }

    /// A vector of these elements.
    pub(crate) fn build(&mut self, ty: Lty, parts: &[String]) -> String {
        parts.iter().enumerate().fold("poison".to_owned(), |vector, (i, part)| {
            self.inst(format_args!("insertelement {ty} {vector}, {} {part}, i32 {i}", ty.elem))
        })
    }

    /// A vector with every element `value`, a scalar of `ty`'s element.
    pub(crate) fn broadcast(&mut self, ty: Lty, value: &str) -> String {
        if ty.lanes == 0 {
            return value.to_owned();
        }
        if !value.starts_with('%') {
            return ty.splat(value);
        }
        let one = self.inst(format_args!("insertelement {ty} poison, {} {value}, i32 0", ty.elem));
        let zeros = std::iter::repeat_n(0, ty.lanes as usize);
        self.shuffle(ty, &one, "poison", zeros)
    }

    /// The module's text; `header` is the function's `define` line up to the brace, `tail` follows the function.
    pub(crate) fn finish(self, header: &str, tail: &str) -> String {
        let mut out = String::new();
        for line in &self.globals {
            let _ = writeln!(out, "{line}");
        }
        let _ = writeln!(out, "{header} {{\nentry:");
        for line in &self.entry {
            let _ = writeln!(out, "{line}");
        }
        out.push_str("  br label %start\nstart:\n");
        for line in &self.body {
            let _ = writeln!(out, "{line}");
        }
        out.push_str("  ret void\n}\n");
        for line in &self.declares {
            let _ = writeln!(out, "{line}");
        }
        out.push_str(tail);
        out
    }
}
