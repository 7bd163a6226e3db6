//! Chat templates render here as Python's jinja2 renders them in `transformers`: `golden/render.py` made
//! `golden/expected.json`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use trace_policy::chat::ChatTemplate;

#[test]
fn templates_render_as_in_python() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let read = |name: &str| std::fs::read_to_string(golden.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let json = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
    let (cases, expected) = (json("cases.json"), json("expected.json"));
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), expected.as_object().unwrap().len(), "run golden/render.py");

    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_210_096);
    let special = [("bos_token".to_string(), "<s>".to_string())];
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let mut template = ChatTemplate::new(&read(case["template"].as_str().unwrap()), &special, now).unwrap();
        for (variable, value) in case["variables"].as_object().into_iter().flatten() {
            template = template.with_variable(variable, value);
        }
        let tools = case["tools"].as_array().cloned().unwrap_or_default();
        let generation = case["add_generation_prompt"].as_bool().unwrap();
        let rendered = template.render(case["messages"].as_array().unwrap(), &tools, generation);
        assert_eq!(rendered.unwrap_or_else(|e| panic!("{name}: {e}")), expected[name].as_str().unwrap(), "{name}");
    }
}
