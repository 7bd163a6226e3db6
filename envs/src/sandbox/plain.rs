//! Values that cross the sandbox's border: plain data, which is what JSON can say.
//!
//! Python's `None`, `bool`, `int`, `float`, `str`, `list`, `tuple` and `dict` with text keys pass; a set, an object, a
//! NaN or an integer beyond 64 bits is refused with the place where it lies.

use monty_types::{DictPairs, MontyObject};
use serde_json::{Map, Number, Value};

/// Nesting deeper than this is refused: no message or state needs it, and a conversion must not exhaust the stack.
const MAX_DEPTH: usize = 64;

/// The Python value of a JSON value.
pub(super) fn to_python(value: &Value) -> MontyObject {
    match value {
        Value::Null => MontyObject::None,
        Value::Bool(b) => MontyObject::Bool(*b),
        Value::Number(n) => match n.as_i64() {
            Some(i) => MontyObject::Int(i),
            // Beyond i64 the nearest float, as a reader without big integers would take it.
            None => MontyObject::Float(n.as_f64().unwrap_or(f64::MAX)),
        },
        Value::String(s) => MontyObject::String(s.clone()),
        Value::Array(items) => MontyObject::List(items.iter().map(to_python).collect()),
        Value::Object(map) => MontyObject::Dict(
            map.iter().map(|(k, v)| (MontyObject::String(k.clone()), to_python(v))).collect::<DictPairs>(),
        ),
    }
}

/// The JSON value of a Python value; tuples become arrays.
///
/// # Errors
/// A sentence that names the place, starting from `place`, and what is there.
pub(super) fn to_json(value: &MontyObject, place: &str) -> Result<Value, String> {
    let mut path = Path { root: place, steps: Vec::new() };
    path.json(value)
}

/// Checks that a value is plain, without converting it, and returns its size: about the bytes of its JSON text.
///
/// # Errors
/// As [`to_json`].
pub(super) fn plain_size(value: &MontyObject, place: &str) -> Result<usize, String> {
    let mut path = Path { root: place, steps: Vec::new() };
    path.size(value)
}

/// Where in a value the walk is.
struct Path<'a> {
    root: &'a str,
    steps: Vec<String>,
}

impl Path<'_> {
    fn refuse<T>(&self, what: &str, instead: &str) -> Result<T, String> {
        Err(format!("{}{} is {what}; {instead}", self.root, self.steps.concat()))
    }

    fn enter<T>(&mut self, step: String, walk: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        if self.steps.len() >= MAX_DEPTH {
            return Err(format!("{} is nested deeper than {MAX_DEPTH} levels", self.root));
        }
        self.steps.push(step);
        let result = walk(self);
        self.steps.pop();
        result
    }

    fn key<'v>(&self, key: &'v MontyObject) -> Result<&'v str, String> {
        match key {
            MontyObject::String(s) => Ok(s),
            other => self.refuse(&format!("a dict with the key {other}"), "use text keys"),
        }
    }

    fn odd<T>(&self, value: &MontyObject) -> Result<T, String> {
        match value {
            MontyObject::Float(x) => self.refuse(&format!("the number {x}"), "only finite numbers are plain data"),
            MontyObject::BigInt(_) => self.refuse("an integer beyond 64 bits", "keep it as text"),
            MontyObject::Set(_) | MontyObject::FrozenSet(_) => self.refuse("a set", "keep a sorted list"),
            MontyObject::Cycle(..) => self.refuse("a value that contains itself", "keep an id instead"),
            other => self.refuse(&format!("{other}"), "only None, bool, int, float, str, list and dict are plain data"),
        }
    }

    fn json(&mut self, value: &MontyObject) -> Result<Value, String> {
        match value {
            MontyObject::None => Ok(Value::Null),
            MontyObject::Bool(b) => Ok(Value::Bool(*b)),
            MontyObject::Int(i) => Ok(Value::from(*i)),
            MontyObject::Float(x) => match Number::from_f64(*x) {
                Some(n) => Ok(Value::Number(n)),
                None => self.odd(value),
            },
            MontyObject::String(s) => Ok(Value::String(s.clone())),
            MontyObject::List(items) | MontyObject::Tuple(items) => {
                items.iter().enumerate().map(|(i, item)| self.enter(format!("[{i}]"), |path| path.json(item))).collect()
            }
            MontyObject::Dict(pairs) => {
                let mut map = Map::with_capacity(pairs.len());
                for (k, v) in pairs {
                    let key = self.key(k)?;
                    map.insert(key.to_string(), self.enter(format!("[{key:?}]"), |path| path.json(v))?);
                }
                Ok(Value::Object(map))
            }
            _ => self.odd(value),
        }
    }

    fn size(&mut self, value: &MontyObject) -> Result<usize, String> {
        match value {
            MontyObject::None | MontyObject::Bool(_) => Ok(5),
            MontyObject::Int(_) => Ok(8),
            MontyObject::Float(x) if x.is_finite() => Ok(8),
            MontyObject::String(s) => Ok(s.len() + 2),
            MontyObject::List(items) | MontyObject::Tuple(items) => {
                let mut total = 2;
                for (i, item) in items.iter().enumerate() {
                    total += 1 + self.enter(format!("[{i}]"), |path| path.size(item))?;
                }
                Ok(total)
            }
            MontyObject::Dict(pairs) => {
                let mut total = 2;
                for (k, v) in pairs {
                    let key = self.key(k)?;
                    total += key.len() + 4 + self.enter(format!("[{key:?}]"), |path| path.size(v))?;
                }
                Ok(total)
            }
            _ => self.odd(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dict(pairs: Vec<(&str, MontyObject)>) -> MontyObject {
        MontyObject::Dict(pairs.into_iter().map(|(k, v)| (MontyObject::String(k.into()), v)).collect::<DictPairs>())
    }

    #[test]
    fn json_survives_the_way_in_and_out() {
        let value = json!({"b": [1, -2, 0.5, true, null, "é\n"], "a": {"deep": [[], {}]}, "n": i64::MIN});
        assert_eq!(to_json(&to_python(&value), "v").unwrap(), value);
        assert_eq!(
            to_json(&to_python(&value), "v").unwrap().as_object().unwrap().keys().collect::<Vec<_>>(),
            ["b", "a", "n"]
        );
    }

    #[test]
    fn what_is_not_plain_is_refused_with_its_place() {
        let state = dict(vec![("seen", MontyObject::List(vec![MontyObject::Int(1), MontyObject::Set(vec![])]))]);
        let expected = "state[\"seen\"][1] is a set; keep a sorted list";
        assert_eq!(to_json(&state, "state").unwrap_err(), expected);
        assert_eq!(plain_size(&state, "state").unwrap_err(), expected);
        for odd in [MontyObject::Float(f64::NAN), MontyObject::Bytes(vec![1]), MontyObject::Ellipsis] {
            assert!(to_json(&odd, "x").unwrap_err().starts_with("x is "), "{odd:?}");
            assert!(plain_size(&odd, "x").is_err(), "{odd:?}");
        }
        let keyed = MontyObject::Dict(vec![(MontyObject::Int(3), MontyObject::None)].into());
        assert_eq!(to_json(&keyed, "x").unwrap_err(), "x is a dict with the key 3; use text keys");
    }

    #[test]
    fn deep_nesting_is_refused_instead_of_exhausting_the_stack() {
        let deep = (0..MAX_DEPTH + 1).fold(MontyObject::None, |inner, _| MontyObject::List(vec![inner]));
        assert_eq!(to_json(&deep, "state").unwrap_err(), "state is nested deeper than 64 levels");
        assert!(plain_size(&deep, "state").is_err());
    }

    #[test]
    fn the_size_is_about_that_of_the_json_text() {
        let value = json!({"words": ["alpha", "beta"], "n": 1_000_000, "flag": false});
        let size = plain_size(&to_python(&value), "v").unwrap();
        let text = value.to_string().len();
        assert!(size.abs_diff(text) <= text / 4, "{size} {text}");
    }
}
