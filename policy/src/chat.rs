//! From messages to token ids, token in, token out.
//!
//! A [`Chat`] is a tokenizer and a chat template. It opens a [`Conversation`], which keeps the ids that the policy has
//! seen and sampled. What was sampled stays as it was sampled: the environment's answers are rendered, tokenised once
//! and appended. Where the template rewrites what stands before (drops old thinking, say), that is seen, and a new
//! [`Segment`] with its own prompt begins.

mod conversation;
mod template;

pub use conversation::{Conversation, Extension, Segment, Span};
pub use template::ChatTemplate;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Why messages could not become tokens.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// There is no chat template.
    #[error("{} has neither chat_template.jinja nor a chat_template in tokenizer_config.json", .0.display())]
    NoTemplate(PathBuf),
    /// The template cannot be read, or refuses these messages.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// A hint was asked for and there is no place for it from which it could be removed again.
    #[error("the hint has no removable place: {0}")]
    Hint(String),
    /// An observation was given although the policy has not answered the last one, or the reverse.
    #[error("{0}")]
    Turn(&'static str),
    /// A demonstration that the template does not render where the policy would have to write it.
    #[error("a demonstrated turn cannot be cut out of the rendered conversation: {0}")]
    Demonstration(String),
}

/// A tokenizer with its chat template. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Chat {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
}

impl Chat {
    /// A chat of these parts.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Arc<ChatTemplate>) -> Self {
        Self { tokenizer, template }
    }

    /// Reads a model's folder: the tokenizer's files and `chat_template.jinja`, or else `chat_template` in
    /// `tokenizer_config.json`. `now` is what the template sees as the present, if it asks: a fixed moment, so that a
    /// run that is resumed has the same prompts.
    ///
    /// # Errors
    /// Where a file is missing or unusable.
    pub fn load(dir: &Path, now: SystemTime) -> Result<Self, ChatError> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = ChatTemplate::load(dir, &tokenizer, now)?;
        Ok(Self::new(Arc::new(tokenizer), Arc::new(template)))
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The template.
    pub fn template(&self) -> &Arc<ChatTemplate> {
        &self.template
    }

    /// Opens a conversation: renders `messages` and `tools` up to the point where the policy is to write.
    ///
    /// Messages are OpenAI's: `role`, `content`, and for an assistant possibly `tool_calls` of
    /// `{"type": "function", "function": {"name", "arguments"}}`. Tools are `{"type": "function", "function": {"name",
    /// "description", "parameters"}}`; none is an empty slice. A `hint` is put at the end of the system message.
    ///
    /// # Errors
    /// Where the template refuses the messages, or the hint has no place from which it could be removed again.
    pub fn open(&self, messages: Vec<Value>, tools: Vec<Value>, hint: Option<&str>) -> Result<Conversation, ChatError> {
        Conversation::open(self.clone(), messages, tools, hint)
    }
}
