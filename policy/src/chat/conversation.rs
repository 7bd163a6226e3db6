//! One episode's conversation as token ids.

use serde_json::{Value, json};

use super::{Chat, ChatError};
use crate::toolcall::{self, ParsedTurn};

/// Stands for the place of a hint while a prompt is rendered; of the private use area, so that no message has it.
const MARK: &str = "\u{f8ff}hint\u{f8ff}";

/// What sets a hint apart from the system message that it follows.
const HINT_GAP: &str = "\n\n";

/// Token positions `start..end` of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first position.
    pub start: usize,
    /// One past the last position.
    pub end: usize,
}

/// A prompt, what the policy sampled after it, and what the environment answered: one training row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// All ids, `[T]`: the context of the next turn.
    pub tokens: Vec<i32>,
    /// `[T]`: true exactly where the policy sampled, its end-of-turn token included.
    pub action_mask: Vec<bool>,
    /// Where the hint stands, if one was given.
    pub hint_span: Option<Span>,
}

impl Segment {
    fn new(prompt: Vec<i32>, hint_span: Option<Span>) -> Self {
        Self { action_mask: vec![false; prompt.len()], tokens: prompt, hint_span }
    }

    fn extend(&mut self, ids: &[i32], sampled: bool) {
        self.tokens.extend_from_slice(ids);
        self.action_mask.resize(self.tokens.len(), sampled);
    }

    /// The same row as if no hint had been given: what a hinted row is trained on.
    pub fn without_hint(&self) -> Self {
        let mut row = self.clone();
        if let Some(Span { start, end }) = row.hint_span.take() {
            row.tokens.drain(start..end);
            row.action_mask.drain(start..end);
        }
        row
    }
}

/// How an observation continued the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The template left what stood before as it was: these ids were appended.
    Appended(Vec<i32>),
    /// The template rewrote what stood before (dropped old thinking, trimmed a turn): a new segment begins with this
    /// prompt, in which nothing counts as sampled. Turns of the segments before are trained there, and only there.
    Rewritten {
        /// The new segment's ids so far.
        prompt: Vec<i32>,
    },
}

/// A conversation between policy and environment, by turns: [`Conversation::sampled`] (or
/// [`Conversation::demonstrate`]), then [`Conversation::observe`], and so on.
#[derive(Clone, Debug)]
pub struct Conversation {
    chat: Chat,
    /// All messages; an assistant's turn has what was sampled as its content, so that the template sees exactly that.
    messages: Vec<Value>,
    tools: Vec<Value>,
    hint: Option<String>,
    /// The text of the last segment's tokens, without the hint.
    text: String,
    /// Never empty.
    segments: Vec<Segment>,
    system_tokens: usize,
    /// True while the policy is to write.
    policys_turn: bool,
}

impl Conversation {
    pub(super) fn open(
        chat: Chat,
        messages: Vec<Value>,
        tools: Vec<Value>,
        hint: Option<&str>,
    ) -> Result<Self, ChatError> {
        let text = chat.template.render(&messages, &tools, true)?;
        let hint = hint.map(String::from);
        let mut opened =
            Self { chat, messages, tools, hint, text, segments: Vec::new(), system_tokens: 0, policys_turn: true };
        let prompt = opened.prompt()?;
        opened.system_tokens = opened.count_system_tokens(&prompt)?;
        opened.segments.push(prompt);
        Ok(opened)
    }

    /// A segment of `self.text`, with the hint at its place.
    fn prompt(&self) -> Result<Segment, ChatError> {
        let tokenizer = &self.chat.tokenizer;
        let mut ids = tokenizer.encode(&self.text)?;
        let Some(hint) = &self.hint else {
            return Ok(Segment::new(ids, None));
        };
        // The hint goes between two tokens of the hint-free prompt, so that taking it out gives that prompt's very ids.
        // Where the end of the system message is inside of a token (".\n\n" is one in some vocabularies), the place
        // moves on over white space.
        let mark = self.hint_place()?;
        let place = std::iter::once(mark).chain(
            self.text[mark..]
                .char_indices()
                .take_while(|(_, c)| c.is_whitespace())
                .map(|(i, c)| mark + i + c.len_utf8()),
        );
        for at in place {
            let mut pieces = tokenizer.encode(&self.text[..at])?;
            let start = pieces.len();
            pieces.extend(tokenizer.encode(&self.text[at..])?);
            if pieces != ids {
                continue;
            }
            let gap = if at == mark { HINT_GAP } else { "" };
            let piece = tokenizer.encode(&format!("{gap}{hint}{}", &self.text[mark..at]))?;
            let span = Span { start, end: start + piece.len() };
            ids.splice(start..start, piece);
            return Ok(Segment::new(ids, Some(span)));
        }
        Err(ChatError::Hint("the end of the system message is inside of a token of the prompt".to_string()))
    }

    /// Where in `self.text` the system message ends.
    fn hint_place(&self) -> Result<usize, ChatError> {
        let mut messages = self.messages.clone();
        let first = messages.first_mut().filter(|message| message["role"] == "system");
        let Some(Value::String(content)) = first.and_then(|message| message.get_mut("content")) else {
            return Err(ChatError::Hint("the first message is no system message with text".to_string()));
        };
        content.push_str(MARK);
        let marked = self.chat.template.render(&messages, &self.tools, true)?;
        let mut pieces = marked.split(MARK);
        let (before, after, more) = (pieces.next().unwrap_or(""), pieces.next(), pieces.next());
        let is_prompt = |after: &str| {
            self.text.len() == before.len() + after.len() && self.text.starts_with(before) && self.text.ends_with(after)
        };
        match (after, more) {
            (Some(after), None) if is_prompt(after) => Ok(before.len()),
            _ => Err(ChatError::Hint("the template does not write the system message once, as it is".to_string())),
        }
    }

    /// How many of the prompt's first tokens come from the system message and the tools alone.
    fn count_system_tokens(&self, prompt: &Segment) -> Result<usize, ChatError> {
        let system = match self.messages.first() {
            Some(first) if first["role"] == "system" => std::slice::from_ref(first),
            _ => return Ok(0),
        };
        // A template may refuse a conversation without a user: then nothing is known to be shared.
        let Ok(text) = self.chat.template.render(system, &self.tools, false) else { return Ok(0) };
        let ids = self.chat.tokenizer.encode(&text)?;
        let end = prompt.hint_span.map_or(usize::MAX, |span| span.start);
        Ok(ids.iter().zip(&prompt.tokens[..end.min(prompt.tokens.len())]).take_while(|(a, b)| a == b).count())
    }

    /// The context of the next turn: the ids of the current segment.
    pub fn tokens(&self) -> &[i32] {
        &self.current().tokens
    }

    /// The segments so far, the current one last. There is more than one only where the template rewrote history.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The messages so far; an assistant's sampled turn has its text, tool calls included, as its content.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// How many of the first segment's leading tokens are the system message's and the tools': worth computing once for
    /// all conversations that share them. Ends before a hint.
    pub fn system_tokens(&self) -> usize {
        self.system_tokens
    }

    fn current(&self) -> &Segment {
        self.segments.last().expect("a conversation has a segment from its opening on")
    }

    fn extend(&mut self, ids: &[i32], sampled: bool) {
        self.segments.last_mut().expect("a conversation has a segment from its opening on").extend(ids, sampled);
    }

    /// Takes the policy's turn as it was sampled, the token that ended it included (it is absent where a limit cut the
    /// turn), and takes its text apart.
    ///
    /// # Errors
    /// Where it is not the policy's turn, or an id is negative.
    pub fn sampled(&mut self, ids: &[i32]) -> Result<ParsedTurn, ChatError> {
        if !self.policys_turn {
            return Err(ChatError::Turn("the policy cannot take a second turn before an observation"));
        }
        let tokenizer = &self.chat.tokenizer;
        let (spoken, stop) = match ids.split_last() {
            Some((last, spoken)) if tokenizer.stop_ids().contains(last) => (spoken, std::slice::from_ref(last)),
            _ => (ids, [].as_slice()),
        };
        let (content, stop) = (tokenizer.decode(spoken)?, tokenizer.decode(stop)?);
        // Some templates open a thinking block in the prompt.
        let thinking_open = self.text.trim_end().ends_with("<think>");
        self.extend(ids, true);
        self.text.push_str(&content);
        self.text.push_str(&stop);
        self.policys_turn = false;
        let turn = toolcall::parse(&content, thinking_open);
        self.messages.push(json!({"role": "assistant", "content": content}));
        Ok(turn)
    }

    /// Takes an assistant's message as if the policy had sampled what the template writes for it, its end-of-turn token
    /// included, and gives those ids: the target of supervised training.
    ///
    /// # Errors
    /// Where it is not the policy's turn, or the template does not write the message where the policy would.
    pub fn demonstrate(&mut self, message: Value) -> Result<Vec<i32>, ChatError> {
        if !self.policys_turn {
            return Err(ChatError::Turn("the policy cannot take a second turn before an observation"));
        }
        let mut messages = self.messages.clone();
        messages.push(message);
        let text = self.chat.template.render(&messages, &self.tools, false)?;
        let Some(turn) = text.strip_prefix(&self.text) else {
            return Err(ChatError::Demonstration("the template rewrites what stands before it".to_string()));
        };
        let tokenizer = &self.chat.tokenizer;
        let stops = tokenizer.stop_ids().iter().filter_map(|id| tokenizer.token_text(*id));
        let end = stops.filter_map(|stop| turn.find(&stop).map(|at| at + stop.len())).min();
        let Some(end) = end else {
            return Err(ChatError::Demonstration("the template writes no end-of-turn token after it".to_string()));
        };
        let ids = tokenizer.encode(&turn[..end])?;
        self.sampled(&ids)?;
        Ok(ids)
    }

    /// Appends what the template writes for the environment's messages and before the policy's next turn. Called once
    /// for all messages between two turns of the policy: a template may join neighbouring tool results.
    ///
    /// # Errors
    /// Where the policy has not taken its turn, or the template refuses the messages.
    pub fn observe(&mut self, messages: Vec<Value>) -> Result<Extension, ChatError> {
        if self.policys_turn {
            return Err(ChatError::Turn("an observation cannot follow before the policy has taken its turn"));
        }
        self.messages.extend(messages);
        let text = self.chat.template.render(&self.messages, &self.tools, true)?;
        let added = text.strip_prefix(&self.text).map(|added| self.chat.tokenizer.encode(added)).transpose()?;
        self.text = text;
        self.policys_turn = true;
        match added {
            Some(ids) => {
                self.extend(&ids, false);
                Ok(Extension::Appended(ids))
            }
            None => {
                let segment = self.prompt()?;
                let prompt = segment.tokens.clone();
                self.segments.push(segment);
                Ok(Extension::Rewritten { prompt })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::ChatTemplate;
    use crate::tokenizer::tests::small;
    use crate::toolcall::ParsedCall;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::SystemTime;

    const BASE: &str = include_str!("../../../data/base/chat_template.jinja");
    /// Drops the thinking of turns before the user's last question.
    const THINKING: &str = include_str!("../../tests/golden/thinking.jinja");

    fn chat(source: &str, variables: Value) -> Chat {
        let mut template = ChatTemplate::new(source, &[], SystemTime::UNIX_EPOCH).unwrap();
        for (name, value) in variables.as_object().into_iter().flatten() {
            template = template.with_variable(name, value);
        }
        Chat::new(small(), Arc::new(template))
    }

    fn message(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    fn opening() -> Vec<Value> {
        vec![message("system", "You are a service agent."), message("user", "Where is my lamp?")]
    }

    fn tools() -> Vec<Value> {
        let parameters = json!({"type": "object", "properties": {"id": {"type": "string"}}});
        let function = json!({"name": "get_order", "description": "Look up an order.", "parameters": parameters});
        vec![json!({"type": "function", "function": function})]
    }

    fn encode(text: &str) -> Vec<i32> {
        small().encode(text).unwrap()
    }

    fn decode(ids: &[i32]) -> String {
        small().decode(ids).unwrap()
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"get_order\", \"arguments\": {\"id\": \"A0001\"}}\n</tool_call>";

    #[test]
    fn stored_ids_are_the_sampled_ids_also_where_their_text_encodes_to_others() {
        let mut talk = chat(BASE, json!({})).open(opening(), tools(), None).unwrap();
        let prompt = talk.tokens().to_vec();
        let mut turn: Vec<i32> = "Please wait".chars().map(|c| encode(&c.to_string())[0]).collect();
        turn.extend(encode("<|im_end|>"));
        assert_ne!(encode(&decode(&turn)), turn);
        assert_eq!(talk.sampled(&turn).unwrap().text, "Please wait");
        let Extension::Appended(added) = talk.observe(vec![message("user", "Well?")]).unwrap() else {
            panic!("nothing was rewritten")
        };
        assert_eq!(decode(&added), "\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(talk.tokens(), [prompt, turn, added].concat());
    }

    #[test]
    fn the_mask_is_true_exactly_where_the_policy_sampled_its_stop_token_included() {
        let mut talk = chat(BASE, json!({})).open(opening(), tools(), None).unwrap();
        let mut mask = vec![false; talk.tokens().len()];
        let turn = encode(&format!("{CALL}<|im_end|>"));
        let parsed = talk.sampled(&turn).unwrap();
        let Value::Object(arguments) = json!({"id": "A0001"}) else { unreachable!() };
        assert_eq!(parsed.calls, [ParsedCall::Ok { name: "get_order".to_string(), arguments }]);
        mask.resize(mask.len() + turn.len(), true);
        // The result holds the stop token's text: it is the environment's all the same.
        let Extension::Appended(added) = talk.observe(vec![message("tool", "x<|im_end|>y")]).unwrap() else {
            panic!("nothing was rewritten")
        };
        assert!(added.contains(&small().stop_ids()[0]));
        mask.resize(mask.len() + added.len(), false);
        assert_eq!(talk.segments(), [Segment { tokens: talk.tokens().to_vec(), action_mask: mask, hint_span: None }]);
    }

    #[test]
    fn a_turn_that_a_limit_cut_is_closed_by_the_environment() {
        let mut talk = chat(BASE, json!({})).open(opening(), tools(), None).unwrap();
        let turn = encode("Please wait and");
        talk.sampled(&turn).unwrap();
        let Extension::Appended(added) = talk.observe(vec![message("user", "Well?")]).unwrap() else {
            panic!("nothing was rewritten")
        };
        assert_eq!(decode(&added), "<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(talk.current().action_mask.iter().filter(|sampled| **sampled).count(), turn.len());
    }

    #[test]
    fn results_of_several_calls_are_one_observation() {
        let mut talk = chat(BASE, json!({})).open(opening(), tools(), None).unwrap();
        talk.sampled(&encode(&format!("{CALL}\n{CALL}<|im_end|>"))).unwrap();
        let Extension::Appended(added) = talk.observe(vec![message("tool", "a"), message("tool", "b")]).unwrap() else {
            panic!("nothing was rewritten")
        };
        let results = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>";
        assert_eq!(decode(&added), format!("\n<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n"));
    }

    #[test]
    fn dropped_thinking_begins_a_new_segment_and_no_token_is_trained_twice() {
        let mut talk = chat(THINKING, json!({})).open(opening(), tools(), None).unwrap();
        let first_prompt = talk.tokens().to_vec();
        let turns = [
            encode(&format!("<think>\nlook it up\n</think>\n\n{CALL}<|im_end|>")),
            encode("<think>\nit is on its way\n</think>\n\nIt comes tomorrow.<|im_end|>"),
            encode("<think>\nthat is all\n</think>\n\nYou are welcome.<|im_end|>"),
        ];
        talk.sampled(&turns[0]).unwrap();
        // A tool's result keeps the thinking of the turns that belong to the same question.
        let Extension::Appended(result) = talk.observe(vec![message("tool", "shipped")]).unwrap() else {
            panic!("the thinking is still there")
        };
        talk.sampled(&turns[1]).unwrap();
        // A new question drops it.
        let Extension::Rewritten { prompt } = talk.observe(vec![message("user", "Thanks")]).unwrap() else {
            panic!("thinking was dropped")
        };
        assert!(!decode(&prompt).contains("<think>"));
        assert_eq!(talk.tokens(), prompt);
        talk.sampled(&turns[2]).unwrap();

        let row = |pieces: [(&[i32], bool); 4]| {
            let mut segment = Segment::new(Vec::new(), None);
            pieces.iter().for_each(|(ids, sampled)| segment.extend(ids, *sampled));
            segment
        };
        let first = row([(&first_prompt, false), (&turns[0], true), (&result, false), (&turns[1], true)]);
        let second = row([(&prompt, false), (&turns[2], true), (&[], false), (&[], false)]);
        assert_eq!(talk.segments(), [first, second]);
    }

    #[test]
    fn a_turn_of_which_the_prompt_opened_the_thinking_is_not_wrapped_again() {
        let mut talk = chat(THINKING, json!({"open_thinking": true})).open(opening(), tools(), None).unwrap();
        assert!(decode(talk.tokens()).ends_with("<|im_start|>assistant\n<think>\n"));
        let parsed = talk.sampled(&encode(&format!("look it up\n</think>\n\n{CALL}<|im_end|>"))).unwrap();
        assert_eq!((parsed.thinking.as_deref(), parsed.calls.len()), (Some("look it up"), 1));
        let extension = talk.observe(vec![message("tool", "shipped")]).unwrap();
        assert!(matches!(extension, Extension::Appended(_)), "{extension:?}");
        let text = decode(talk.tokens());
        assert_eq!(text.matches("<think>").count(), 2, "one of the turn, one of the next turn's prompt:\n{text}");
        // Cut within its thinking, it says nothing.
        let parsed = talk.sampled(&encode("it is on its way")).unwrap();
        assert_eq!((parsed.thinking.as_deref(), parsed.text.as_str()), (Some("it is on its way"), ""));
    }

    #[test]
    fn a_template_that_trims_turns_is_seen_to_rewrite_them() {
        let mut talk = chat(&BASE.replace("message.content or ''", "message.content | trim"), json!({}))
            .open(opening(), vec![], None)
            .unwrap();
        talk.sampled(&encode("Please wait <|im_end|>")).unwrap();
        let Extension::Rewritten { prompt } = talk.observe(vec![message("user", "Well?")]).unwrap() else {
            panic!("a blank was dropped")
        };
        assert!(decode(&prompt).contains("Please wait<|im_end|>"));
    }

    #[test]
    fn a_prompt_that_the_template_begins_with_bos_has_exactly_one() {
        // A tokenizer that adds <|endoftext|> in front of its own accord, as those of llama do.
        let dir = tempfile::tempdir().unwrap();
        let corpus = std::iter::repeat_n("user assistant system".to_string(), 3);
        crate::tokenizer::train_bpe(corpus, 280, &crate::tokenizer::BASE_TOKENS, dir.path()).unwrap();
        let path = dir.path().join("tokenizer.json");
        let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        file["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
        });
        std::fs::write(&path, file.to_string()).unwrap();
        let config = json!({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
            "chat_template": format!("{{{{- bos_token }}}}\n{BASE}")});
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let mut talk = Chat::load(dir.path(), SystemTime::UNIX_EPOCH).unwrap().open(opening(), vec![], None).unwrap();
        talk.sampled(&[100, 101, 2]).unwrap();
        talk.observe(vec![message("user", "Well?")]).unwrap();
        assert_eq!(talk.tokens()[0], 0);
        assert_eq!(talk.tokens().iter().filter(|id| **id == 0).count(), 1);
        // Padding and end of turn are the same token here: the end of turn is trained, and only the sampled one.
        let trained = talk.current().tokens.iter().zip(&talk.current().action_mask).filter(|(_, sampled)| **sampled);
        assert_eq!(trained.map(|(id, _)| *id).collect::<Vec<_>>(), [100, 101, 2]);
    }

    #[test]
    fn taking_the_hint_out_gives_the_hint_free_row() {
        // The system message ends before a special token in one template; in the other it runs on into white space,
        // with which its full stop may be one token.
        for (source, tools) in [(BASE, tools()), (BASE, vec![]), (THINKING, tools()), (THINKING, vec![])] {
            let chat = chat(source, json!({}));
            let hint = "Please look up the order first.";
            let mut plain = chat.open(opening(), tools.clone(), None).unwrap();
            let mut hinted = chat.open(opening(), tools.clone(), Some(hint)).unwrap();
            let Span { start, end } = hinted.current().hint_span.unwrap();
            assert_eq!(decode(&hinted.tokens()[start..end]).trim(), hint);
            assert!(decode(hinted.tokens()).contains(&format!("agent.\n\n{hint}")), "{}", decode(hinted.tokens()));
            assert_eq!(plain.tokens(), encode(&chat.template().render(&opening(), &tools, true).unwrap()));
            for talk in [&mut plain, &mut hinted] {
                talk.sampled(&encode("Please wait.<|im_end|>")).unwrap();
                assert!(matches!(talk.observe(vec![message("user", "Well?")]).unwrap(), Extension::Appended(_)));
            }
            assert_eq!(&hinted.current().without_hint(), plain.current());
            assert_ne!(hinted.current().tokens, plain.current().tokens);
        }
    }

    #[test]
    fn a_rewritten_prompt_has_the_hint_at_its_place_again() {
        let chat = chat(THINKING, json!({}));
        let rows = [None, Some("Please look up the order first.")].map(|hint| {
            let mut talk = chat.open(opening(), tools(), hint).unwrap();
            talk.sampled(&encode("<think>\nhm\n</think>\n\nPlease wait.<|im_end|>")).unwrap();
            assert!(matches!(talk.observe(vec![message("user", "Well?")]).unwrap(), Extension::Rewritten { .. }));
            talk.current().clone()
        });
        assert!(rows[1].hint_span.is_some());
        assert_eq!(rows[1].without_hint(), rows[0]);
    }

    #[test]
    fn a_hint_that_could_not_be_removed_is_refused() {
        let refused = |source: &str, messages: Vec<Value>| {
            let error = chat(source, json!({})).open(messages, vec![], Some("Look.")).unwrap_err();
            assert!(matches!(error, ChatError::Hint(_)), "{error}");
        };
        refused(BASE, vec![message("user", "no system message")]);
        refused(&BASE.replace("messages[0].content }}", "messages[0].content * 2 }}"), opening());
        refused(&BASE.replace("messages[0].content }}", "messages[0].content | length }}"), opening());
        refused(&BASE.replace("messages[0].content }}", "messages[0].content ~ messages[0].content }}"), opening());
    }

    #[test]
    fn what_conversations_share_ends_before_the_customer_and_before_a_hint() {
        let chat = chat(BASE, json!({}));
        let plain = chat.open(opening(), tools(), None).unwrap();
        let system = decode(&plain.tokens()[..plain.system_tokens()]);
        assert!(system.ends_with("agent.<|im_end|>\n"), "{system}");
        let hinted = chat.open(opening(), tools(), Some("Look.")).unwrap();
        assert_eq!(hinted.system_tokens(), hinted.current().hint_span.unwrap().start);
        let bare = chat.open(vec![message("user", "Hi")], vec![], None).unwrap();
        assert_eq!(bare.system_tokens(), 0);
    }

    #[test]
    fn a_demonstration_is_what_the_template_writes_up_to_the_end_of_turn() {
        let mut talk = chat(BASE, json!({})).open(opening(), tools(), None).unwrap();
        let call = json!({"type": "function", "function": {"name": "get_order", "arguments": {"id": "A0001"}}});
        let ids = talk.demonstrate(json!({"role": "assistant", "content": "", "tool_calls": [call]})).unwrap();
        assert_eq!(decode(&ids), format!("{CALL}<|im_end|>"));
        assert!(talk.tokens().ends_with(&ids) && talk.current().action_mask.ends_with(&vec![true; ids.len()]));
        assert!(matches!(talk.observe(vec![message("tool", "shipped")]).unwrap(), Extension::Appended(_)));
        let ids = talk.demonstrate(message("assistant", "It comes tomorrow.")).unwrap();
        assert_eq!(decode(&ids), "It comes tomorrow.<|im_end|>");
        // All of it is what the template makes of the whole conversation.
        assert_eq!(decode(talk.tokens()) + "\n", talk.chat.template.render(talk.messages(), &tools(), false).unwrap());
    }

    #[test]
    fn turns_alternate() {
        let mut talk = chat(BASE, json!({})).open(opening(), vec![], None).unwrap();
        assert!(matches!(talk.observe(vec![message("user", "Well?")]), Err(ChatError::Turn(_))));
        talk.sampled(&encode("Yes.<|im_end|>")).unwrap();
        assert!(matches!(talk.sampled(&[5]), Err(ChatError::Turn(_))));
        assert!(matches!(talk.demonstrate(message("assistant", "x")), Err(ChatError::Turn(_))));
    }

    proptest! {
        /// Whatever is sampled, the row is the prompt, the sampled ids and the appended ids, in this order.
        #[test]
        fn rows_are_what_was_given_and_appended(
            turns in prop::collection::vec((prop::collection::vec(0_i32..380, 0..12), any::<bool>()), 1..5),
        ) {
            let mut talk = chat(BASE, json!({})).open(opening(), tools(), Some("Look.")).unwrap();
            let mut expected = talk.current().clone();
            for (turn, by_tool) in &turns {
                talk.sampled(turn).unwrap();
                expected.extend(turn, true);
                let role = if *by_tool { "tool" } else { "user" };
                match talk.observe(vec![message(role, "Please wait")]).unwrap() {
                    Extension::Appended(added) => expected.extend(&added, false),
                    Extension::Rewritten { prompt } => prop_assert!(false, "rewritten to {}", decode(&prompt)),
                }
                prop_assert_eq!(talk.current(), &expected);
            }
            prop_assert_eq!(talk.segments().len(), 1);
        }
    }
}
