//! Table entries of vector ops, by shape.

/// Entries of ops with one destination whose executor is a function of wave, step and the op's own function.
macro_rules! vector {
    ($class:ident, $accepts:expr, $literal:ident, $shape:path, $($f:ident),+ $(,)?) => {
        [$(crate::emu::op::Op {
            name: stringify!($f),
            class: crate::counts::Class::$class,
            dsts: 1,
            accepts: $accepts,
            literal: crate::emu::op::Literal::$literal,
            run: |w, _, s| $shape(w, s, $f),
        }),+]
    };
}

/// Entries of ops whose sources and result have the given widths.
macro_rules! vector_any {
    ($accepts:expr, $literal:ident, $result:ident, [$($source:ident),+], $($f:ident),+ $(,)?) => {
        vector_any!(@each $accepts, $literal, $result,
            [$(crate::emu::lanes::Width::$source),+], [$($f),+])
    };
    (@each $accepts:expr, $literal:ident, $result:ident, $sources:tt, [$($f:ident),+]) => {
        [$(crate::emu::op::Op {
            name: stringify!($f),
            class: crate::counts::Class::Valu,
            dsts: 1,
            accepts: $accepts,
            literal: crate::emu::op::Literal::$literal,
            run: |w, _, s| crate::emu::lanes::any(w, s, crate::emu::lanes::Width::$result, $sources, $f),
        }),+]
    };
}

pub(super) use {vector, vector_any};
