//! The table of config fields: one line a field.

use std::fmt;

use serde_json::Value;

/// A value that a field must equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(u64),
    Text(&'static str),
}

impl Literal {
    /// Whether a JSON value is this literal; 1.0 is not the integer 1.
    pub fn is(&self, value: &Value) -> bool {
        match self {
            Literal::Null => value.is_null(),
            Literal::Bool(b) => value.as_bool() == Some(*b),
            Literal::Int(n) => value.as_u64() == Some(*n),
            Literal::Text(s) => value.as_str() == Some(s),
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Null => f.write_str("null"),
            Literal::Bool(b) => write!(f, "{b}"),
            Literal::Int(n) => write!(f, "{n}"),
            Literal::Text(s) => write!(f, "\"{s}\""),
        }
    }
}

/// What a field means to the compiler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Read by the model's config; absence is an error there unless another spelling stands in.
    Used,
    /// Only these values are built; absence means the model's definition holds.
    MustEqual(&'static [Literal]),
    /// Without effect on the text trunk.
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// `name`, or `object.name` for fields of an opened object.
    pub name: &'static str,
    pub rule: Rule,
}

impl Field {
    pub const fn used(name: &'static str) -> Field {
        Field { name, rule: Rule::Used }
    }

    pub const fn equal(name: &'static str, values: &'static [Literal]) -> Field {
        Field { name, rule: Rule::MustEqual(values) }
    }

    pub const fn ignored(name: &'static str) -> Field {
        Field { name, rule: Rule::Ignored }
    }
}

/// All fields of a model's config.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub fields: &'static [Field],
    /// Fields that models share.
    pub more: &'static [Field],
    /// Objects whose fields stand in the table one by one.
    pub opened: &'static [&'static str],
}

impl Table {
    pub fn find(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().chain(self.more).find(|f| f.name == name)
    }
}
