//! The printed forms in which an op is tested: registers, constants, modifiers, masks, overlaps.

use unglue_codegen::emu::op::accepts;
use unglue_codegen::emu::step;
use unglue_codegen::isa::sreg;

use crate::harness::{Def, Dst, NEG, Rule, VECTOR};
use crate::values::{self, Kind};

/// How a source is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    V,
    S,
    Const(u64),
}

/// One printed form.
pub struct Form {
    pub text: String,
    pub places: Vec<Place>,
    pub neg: u8,
    pub abs: u8,
    pub clamp: bool,
    /// Binary exponent that is added to the result's.
    pub mask_out: u8,
    pub mask_in: u8,
    /// First register of the destination.
    pub dst: usize,
}

pub const DST: usize = 60;
const MASK_IN: u8 = 7;
const MASK_OUT: u8 = 6;

/// First vector register of source i.
pub fn vreg(i: usize) -> usize {
    8 + 4 * i
}

pub fn sreg_of(i: usize) -> usize {
    20 + 4 * i
}

fn range(prefix: char, first: usize, words: usize) -> String {
    if words == 1 { format!("{prefix}{first}") } else { format!("{prefix}[{first}:{}]", first + words - 1) }
}

pub fn dst_words(dst: Dst) -> usize {
    match dst {
        Dst::B64 => 2,
        Dst::B128 => 4,
        _ => 1,
    }
}

fn scalar_name(n: u8) -> String {
    match n {
        sreg::VCC => "vcc_lo".into(),
        sreg::NULL => "null".into(),
        n => format!("s{n}"),
    }
}

/// The plain form, which others vary.
fn plain(def: &Def) -> Form {
    let place = if def.dst == Dst::Scalar { Place::S } else { Place::V };
    let places = def.srcs.iter().map(|k| if *k == Kind::Lit { Place::Const(0x3fc1_2345) } else { place }).collect();
    let mut form = Form {
        text: String::new(),
        places,
        neg: 0,
        abs: 0,
        clamp: false,
        mask_out: MASK_OUT,
        mask_in: MASK_IN,
        dst: DST,
    };
    if def.name.starts_with("v_cmpx_") {
        form.mask_out = sreg::EXEC;
    }
    if def.srcs.contains(&Kind::Vcc) {
        form.mask_in = sreg::VCC;
    }
    form
}

fn print(def: &Def, form: &mut Form, constants: &[(usize, String)]) {
    let mut operands = Vec::new();
    match def.dst {
        Dst::Mask => {}
        Dst::Scalar => operands.push("s60".to_owned()),
        other => operands.push(range('v', form.dst, dst_words(other))),
    }
    if matches!(def.rule, Rule::Carry(_) | Rule::Test(_)) && form.mask_out != sreg::EXEC {
        operands.push(scalar_name(form.mask_out));
    }
    for (i, kind) in def.srcs.iter().enumerate() {
        let words = kind.words();
        let text = match (kind, form.places[i]) {
            (Kind::OldF32 | Kind::Vcc, _) => continue,
            (Kind::Mask, _) => scalar_name(form.mask_in),
            (_, Place::V) => range('v', vreg(i), words),
            (_, Place::S) => range('s', sreg_of(i), words),
            (_, Place::Const(bits)) => {
                constants.iter().find(|(at, _)| *at == i).map_or(format!("{bits:#x}"), |(_, text)| text.clone())
            }
        };
        let text = if form.abs >> i & 1 == 1 { format!("|{text}|") } else { text };
        operands.push(if form.neg >> i & 1 == 1 { format!("-{text}") } else { text });
    }
    form.text = format!("{} {}", def.name, operands.join(", "));
    if form.clamp {
        form.text.push_str(" clamp");
    }
}

/// Takes a change of the plain form and the printed constants of sources.
type Add<'a> = &'a mut dyn FnMut(&dyn Fn(&mut Form), &[(usize, String)]);

/// Every form of an op. A float source can always be negated; `clamp` may be refused.
pub fn forms(def: &Def) -> Vec<Form> {
    let mut out = Vec::new();
    let mut add = |change: &dyn Fn(&mut Form), constants: &[(usize, String)]| {
        let mut form = plain(def);
        change(&mut form);
        print(def, &mut form, constants);
        out.push(form);
    };
    add(&|_| {}, &[]);
    let literal = def.srcs.contains(&Kind::Lit);
    sources(def, literal, &mut add);
    // With a literal of its own an op has no place for modifiers.
    if !literal {
        modifiers(def, &mut add);
    }
    registers(def, literal, &mut add);
    out
}

/// Scalar registers and constants.
fn sources(def: &Def, literal: bool, add: Add) {
    for (i, kind) in def.srcs.iter().enumerate() {
        let fixed = matches!(kind, Kind::OldF32 | Kind::Vcc | Kind::Mask | Kind::Lit | Kind::B128);
        // With a literal of their own only the first source may be scalar.
        if fixed || def.mods & VECTOR != 0 || literal && i > 0 {
            continue;
        }
        add(&|f| f.places[i] = Place::S, &[]);
        // Which bits an inline float has in a 32-bit source of a 64-bit op the text does not say.
        let mixed = kind.words() == 1 && (def.dst == Dst::B64 || def.srcs.iter().any(|k| k.words() > 1));
        for (text, bits) in values::constants(*kind) {
            let skip = literal && text.starts_with("0x") || mixed && !kind.is_float() && text.contains('.');
            if !skip {
                add(&|f| f.places[i] = Place::Const(bits), &[(i, text)]);
            }
        }
    }
}

fn modifiers(def: &Def, add: Add) {
    let accepted = def.mods & step::lookup(def.name).map_or(u16::MAX, |op| op.accepts);
    if def.mods & NEG != 0 {
        let floats = (0..def.srcs.len()).filter(|i| def.srcs[*i].is_float());
        for i in floats {
            add(&|f| f.neg = 1 << i, &[]);
            // The encoding with a mask destination has no room for |x|.
            if !matches!(def.rule, Rule::Carry(_)) {
                add(&|f| f.abs = 1 << i, &[]);
                add(&|f| (f.neg, f.abs) = (1 << i, 1 << i), &[]);
            }
        }
    }
    let clamp = accepted & accepts::CLAMP != 0;
    if clamp {
        add(&|f| f.clamp = true, &[]);
    }
}

/// Other masks, and a destination that is a source too: reads come before writes.
fn registers(def: &Def, literal: bool, add: Add) {
    if matches!(def.rule, Rule::Carry(_) | Rule::Test(_)) && !def.name.starts_with("v_cmpx_") {
        add(&|f| f.mask_out = sreg::VCC, &[]);
    }
    if def.srcs.contains(&Kind::Mask) {
        add(&|f| (f.mask_in, f.mask_out) = (sreg::VCC, sreg::VCC), &[]);
    }
    if matches!(def.rule, Rule::Carry(_)) {
        add(&|f| f.mask_out = sreg::NULL, &[]);
    }
    let vector = matches!(def.dst, Dst::B16 | Dst::B32 | Dst::B64) && def.srcs.len() > 1;
    if vector && def.srcs[0].words() == 1 && !literal && !def.srcs.contains(&Kind::OldF32) {
        add(&|f| f.dst = vreg(0), &[]);
    }
}
