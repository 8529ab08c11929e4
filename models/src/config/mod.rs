//! Fields of a `config.json` against one table: every field is used, must equal a value, or is ignored; anything else
//! is an error. No field has a default.

mod table;

use serde_json::{Map, Value};

use crate::error::ModelError;
pub use table::{Field, Literal, Rule, Table};

/// Largest size that a config may state.
pub const MAX_SIZE: u64 = 1 << 31;

/// Exceptions that the user has allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPolicy {
    /// Names of unknown fields to ignore (`name` or `object.name`).
    pub allow: Vec<String>,
}

/// The fields of one config, checked against its table.
#[derive(Debug)]
pub struct Fields {
    values: Map<String, Value>,
}

impl Fields {
    /// Parses and checks a config: text fields may stand under `text_config` or at the top.
    ///
    /// # Errors
    /// Not JSON, a field that no rule knows, or one that must equal another value.
    pub fn read(text: &str, table: &Table, policy: &FieldPolicy) -> Result<Fields, ModelError> {
        let json: Value = serde_json::from_str(text).map_err(|e| ModelError::ConfigJson { detail: e.to_string() })?;
        let Value::Object(top) = json else {
            return Err(ModelError::ConfigJson { detail: format!("the document is {}", describe(&json)) });
        };
        let mut values = Map::new();
        for (name, value) in top {
            match value {
                Value::Object(inner) if name == "text_config" => {
                    for (name, value) in inner {
                        insert(&mut values, name, value, table)?;
                    }
                }
                other if name == "text_config" => {
                    return Err(wrong("text_config", &other, "an object"));
                }
                other => insert(&mut values, name, other, table)?,
            }
        }
        let fields = Fields { values };
        fields.check_known(table, policy)?;
        Ok(fields)
    }

    fn check_known(&self, table: &Table, policy: &FieldPolicy) -> Result<(), ModelError> {
        let unknown = |name: &&String| table.find(name).is_none() && !policy.allow.contains(*name);
        match self.values.keys().find(unknown) {
            Some(name) => Err(ModelError::UnknownField { field: name.clone() }),
            None => Ok(()),
        }
    }

    /// The field under any of its spellings; `None` if it is absent everywhere.
    ///
    /// # Errors
    /// Two spellings with different values.
    pub fn find(&self, names: &[&str]) -> Result<Option<(String, &Value)>, ModelError> {
        let mut found: Option<(String, &Value)> = None;
        for name in names {
            let Some(value) = self.values.get(*name) else { continue };
            match &found {
                Some((first, other)) if *other != value => {
                    return Err(ModelError::Inconsistent {
                        rule: "one field, two spellings",
                        found: format!("`{first}` is {}, `{name}` is {}", describe(other), describe(value)),
                        needed: "give one of them, or equal values".into(),
                    });
                }
                Some(_) => {}
                None => found = Some(((*name).into(), value)),
            }
        }
        Ok(found)
    }

    fn need(&self, names: &[&str]) -> Result<(String, &Value), ModelError> {
        let field = names.join("` or `");
        self.find(names)?.ok_or(ModelError::MissingField { field })
    }

    /// A size from 1 to [`MAX_SIZE`], under any of the spellings.
    pub fn size(&self, names: &[&str]) -> Result<u64, ModelError> {
        self.integer(names, 1, MAX_SIZE)
    }

    /// An integer in a range.
    pub fn integer(&self, names: &[&str], least: u64, most: u64) -> Result<u64, ModelError> {
        let (name, value) = self.need(names)?;
        match value.as_u64() {
            Some(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(wrong(&name, value, &format!("an integer from {least} to {most}"))),
        }
    }

    /// A finite number in a range, as f32.
    pub fn real(&self, names: &[&str], least: f64, most: f64) -> Result<f32, ModelError> {
        let (name, value) = self.need(names)?;
        match value.as_f64() {
            Some(x) if x.is_finite() && (least..=most).contains(&x) => Ok(x as f32),
            _ => Err(wrong(&name, value, &format!("a number from {least} to {most}"))),
        }
    }

    /// Whether the field is present and null.
    pub fn is_null(&self, names: &[&str]) -> Result<bool, ModelError> {
        Ok(self.find(names)?.is_some_and(|(_, v)| v.is_null()))
    }

    pub fn flag(&self, names: &[&str]) -> Result<bool, ModelError> {
        let (name, value) = self.need(names)?;
        value.as_bool().ok_or_else(|| wrong(&name, value, "true or false"))
    }

    /// A list of strings, if the field is present.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<&str>>, ModelError> {
        let Some(value) = self.values.get(name) else { return Ok(None) };
        let items = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        items.map(Some).ok_or_else(|| wrong(name, value, "a list of strings"))
    }

    /// A list of integers, if the field is present.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<u64>>, ModelError> {
        let Some(value) = self.values.get(name) else { return Ok(None) };
        let items = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        items.map(Some).ok_or_else(|| wrong(name, value, "a list of integers"))
    }

    /// The field as it is, if it is there.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

/// Adds a field; objects named by the table are opened into `object.name`.
fn insert(values: &mut Map<String, Value>, name: String, value: Value, table: &Table) -> Result<(), ModelError> {
    match value {
        Value::Object(inner) if table.opened.contains(&name.as_str()) => {
            for (key, value) in inner {
                values.insert(format!("{name}.{key}"), value);
            }
        }
        // Configs of models without the object spell it null.
        Value::Null if table.opened.contains(&name.as_str()) => {}
        other if table.opened.contains(&name.as_str()) => return Err(wrong(&name, &other, "an object")),
        other => {
            // A rule of equality binds every place; the outer model type names the multimodal model.
            check(&name, &other, table)?;
            if let Some(first) = values.get(&name)
                && *first != other
                && matches!(table.find(&name), Some(Field { rule: Rule::Used, .. }))
            {
                return Err(ModelError::Inconsistent {
                    rule: "one field at the top and in text_config",
                    found: format!("`{name}` is {} and {}", describe(first), describe(&other)),
                    needed: "equal values".into(),
                });
            }
            values.entry(name).or_insert(other);
        }
    }
    Ok(())
}

/// Whether a value satisfies its rule, as far as that needs no other field.
fn check(name: &str, value: &Value, table: &Table) -> Result<(), ModelError> {
    match table.find(name).map(|f| &f.rule) {
        Some(Rule::MustEqual(allowed)) if !allowed.iter().any(|a| a.is(value)) => {
            let allowed: Vec<String> = allowed.iter().map(|a| a.to_string()).collect();
            Err(ModelError::Unsupported {
                what: format!("config field `{name}`"),
                found: describe(value),
                supported: allowed.join(" or "),
            })
        }
        _ => Ok(()),
    }
}

pub(crate) fn wrong(field: &str, value: &Value, needed: &str) -> ModelError {
    ModelError::Field { field: field.into(), found: describe(value), needed: needed.into() }
}

/// A value as an error shows it: short, and never a page of JSON.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".into(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::String(s) if s.chars().count() > 60 => format!("a string of {} characters", s.chars().count()),
        other => other.to_string(),
    }
}
