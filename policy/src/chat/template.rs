//! A Hugging Face chat template, rendered as `transformers` renders it in Python.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter};

use super::ChatError;
use crate::tokenizer::{Tokenizer, read_json_object};

const NAME: &str = "chat";

/// A compiled chat template with the variables that every rendering has.
pub struct ChatTemplate {
    environment: Environment<'static>,
    variables: BTreeMap<String, Jinja>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("variables", &self.variables).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` are variables such as `eos_token`; `now` is what `strftime_now` gives, in
    /// UTC.
    ///
    /// # Errors
    /// Where the source is no Jinja.
    pub fn new(source: &str, special_tokens: &[(String, String)], now: SystemTime) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| ChatError::Template(describe(&e)))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| strftime(now, &format));
        environment.add_template_owned(NAME, source.to_string()).map_err(|e| ChatError::Template(describe(&e)))?;
        let variables = special_tokens.iter().map(|(name, token)| (name.clone(), Jinja::from(token.clone()))).collect();
        Ok(Self { environment, variables })
    }

    /// Reads `chat_template.jinja` of a model's folder, or else `chat_template` in its `tokenizer_config.json` (of
    /// several named ones: `default`).
    ///
    /// # Errors
    /// Where there is none, or it is no Jinja.
    pub fn load(dir: &Path, tokenizer: &Tokenizer, now: SystemTime) -> Result<Self, ChatError> {
        let source = match std::fs::read_to_string(dir.join("chat_template.jinja")) {
            Ok(source) => source,
            Err(_) => {
                let config = read_json_object(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
                let named = |templates: &Vec<Value>| {
                    let default = templates.iter().find(|template| template["name"] == "default")?;
                    default["template"].as_str().map(String::from)
                };
                match config.get("chat_template") {
                    Some(Value::String(source)) => Some(source.clone()),
                    Some(Value::Array(templates)) => named(templates),
                    _ => None,
                }
                .ok_or_else(|| ChatError::NoTemplate(dir.to_path_buf()))?
            }
        };
        Self::new(&source, tokenizer.special_tokens(), now)
    }

    /// Sets a variable for every rendering, such as Qwen3's `enable_thinking`.
    pub fn with_variable(mut self, name: &str, value: &Value) -> Self {
        self.variables.insert(name.to_string(), Jinja::from(Serde(value)));
        self
    }

    /// Renders messages; with `add_generation_prompt` up to where the policy is to write. No tools is `tools` absent,
    /// as in `transformers`.
    ///
    /// # Errors
    /// Where the template raises an exception or reads what is not there.
    pub fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let mut context = self.variables.clone();
        let tools = if tools.is_empty() { Jinja::from(()) } else { Jinja::from(Serde(tools)) };
        context.insert("messages".to_string(), Jinja::from(Serde(messages)));
        context.insert("tools".to_string(), tools);
        context.insert("documents".to_string(), Jinja::from(()));
        context.insert("add_generation_prompt".to_string(), Jinja::from(add_generation_prompt));
        let template = self.environment.get_template(NAME).map_err(|e| ChatError::Template(describe(&e)))?;
        template.render(context).map_err(|e| ChatError::Template(describe(&e)))
    }
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)` of Python: keys in their order, nothing escaped for HTML.
fn tojson(value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson was given something that is not defined"));
    }
    let indent: Option<usize> = options.get("indent")?;
    for unchanged in ["ensure_ascii", "sort_keys"] {
        if options.get::<Option<bool>>(unchanged)?.unwrap_or(false) {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson({unchanged}=true) is not supported")));
        }
    }
    options.assert_all_used()?;
    let spaces = " ".repeat(indent.unwrap_or(0));
    let mut out = Vec::new();
    let done = match indent {
        Some(_) => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut out,
            Python(PrettyFormatter::with_indent(spaces.as_bytes())),
        )),
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Python(OneLine))),
    };
    let text = done.map_err(|e| e.to_string()).and_then(|()| String::from_utf8(out).map_err(|e| e.to_string()));
    // A safe string is not escaped again; templates render without escaping in any case.
    text.map(Jinja::from_safe_string).map_err(|reason| Error::new(ErrorKind::BadSerialization, reason))
}

/// Python's `json`: floats as `repr` writes them, and the rest as the formatter within says.
struct Python<F>(F);

/// Python's separators on one line: `", "` and `": "`.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// Hands the formatter's methods on to the one within.
macro_rules! hand_on {
    ($($method:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $method<W: ?Sized + std::io::Write>(&mut self, out: &mut W, $($argument: $kind),*) -> std::io::Result<()> {
            self.0.$method(out, $($argument),*)
        })*
    };
}

impl<F: Formatter> Formatter for Python<F> {
    hand_on! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }

    fn write_f64<W: ?Sized + std::io::Write>(&mut self, out: &mut W, value: f64) -> std::io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_f32<W: ?Sized + std::io::Write>(&mut self, out: &mut W, value: f32) -> std::io::Result<()> {
        self.write_f64(out, f64::from(value))
    }
}

/// `repr(float)`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// The moment `now` in UTC by a `strftime` format; the directives that chat templates use.
fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day_of_year) = (1970_u64, days);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day_of_year >= 365 + u64::from(leap(year)) {
        day_of_year -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let (mut month, mut day) = (0, day_of_year);
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let weekday = DAYS[(days % 7) as usize];
        match letters.next() {
            Some('Y') => out.push_str(&format!("{year:04}")),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{:02}", month + 1)),
            Some('B') => out.push_str(MONTHS[month]),
            Some('b') => out.push_str(&MONTHS[month][..3]),
            Some('d') => out.push_str(&format!("{:02}", day + 1)),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('H') => out.push_str(&format!("{:02}", second_of_day / 3600)),
            Some('M') => out.push_str(&format!("{:02}", second_of_day / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", second_of_day % 60)),
            Some('%') => out.push('%'),
            other => {
                let directive = other.map_or_else(|| "%".to_string(), |letter| format!("%{letter}"));
                let reason = format!("strftime_now does not know {directive}");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
    }
    Ok(out)
}
