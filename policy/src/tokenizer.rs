//! Text to token ids and back, by a Hugging Face `tokenizer.json`.
//!
//! Ids are `i32` at this interface. Encoding never adds a token of its own accord: a begin-of-sequence token, where a
//! model wants one, is written by its chat template, so that there is exactly one. Added tokens that stand in the text
//! (`<|im_end|>`, `<tool_call>`) become their ids. Decoding keeps them.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, TokenizerImpl};

/// How the base policy's text is cut before byte-level BPE: words (joined by underscores as in tool names) keep one
/// leading space, every digit stands alone so that numbers are copied digit by digit, and a run of anything else stays
/// together, so that JSON punctuation merges.
const BASE_SPLIT: &str = r" ?\p{L}+(?:_\p{L}+)*|\p{N}|[^\p{L}\p{N}]+";

/// The added tokens of the base policy, in the order of their ids, and whether each is special (control, not text).
pub const BASE_TOKENS: [(&str, bool); 9] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
];

/// Why a tokenizer could not be read, made or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file is missing or unreadable.
    #[error("cannot read or write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is there and is not what its name says.
    #[error("{} is not usable: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A token that other files rely on is not in the vocabulary.
    #[error("the token {token:?}, named as {role} in {}, is not in the vocabulary of tokenizer.json", path.display())]
    UnknownToken {
        /// The file that names it.
        path: PathBuf,
        /// What it is needed for.
        role: &'static str,
        /// The token's text.
        token: String,
    },
    /// The library failed on a text.
    #[error("the tokenizer failed on a text of {length} bytes: {reason}")]
    Encode {
        /// The text's length in bytes.
        length: usize,
        /// What the library said.
        reason: String,
    },
    /// An id that no tokenizer can have.
    #[error("token id {0} is negative")]
    NegativeId(i32),
    /// The corpus is too small for the vocabulary that was asked for.
    #[error("the corpus yields {got} tokens of the {wanted} asked for: give more text or ask for a smaller vocabulary")]
    SmallCorpus {
        /// Tokens that the corpus yields.
        got: usize,
        /// Tokens that were asked for.
        wanted: usize,
    },
}

/// A tokenizer with what its neighbouring files say about it.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Special tokens by their name in a chat template, such as `eos_token`.
    special_tokens: Vec<(String, String)>,
    /// Ids that end a turn; sorted, never empty after `load`.
    stop_ids: Vec<i32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("special_tokens", &self.special_tokens)
            .field("stop_ids", &self.stop_ids)
            .finish()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model's folder, with `tokenizer_config.json` (special tokens) and
    /// `generation_config.json` (`eos_token_id`) where they are there. Truncation and padding that the file may ask
    /// for are turned off.
    ///
    /// # Errors
    /// Where a file cannot be read, a named special token is not in the vocabulary, or nothing says which token ends
    /// a turn.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| TokenizerError::Io { path: path.clone(), source })?;
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|e| TokenizerError::Format { path: path.clone(), reason: e.to_string() })?;
        inner
            .with_padding(None)
            .with_truncation(None)
            .map_err(|e| TokenizerError::Format { path: path.clone(), reason: e.to_string() })?;

        let config_path = dir.join("tokenizer_config.json");
        let config = read_json_object(&config_path)?.unwrap_or_default();
        let mut special_tokens = Vec::new();
        for role in ["bos_token", "eos_token", "unk_token", "pad_token"] {
            let token = match config.get(role) {
                Some(Value::String(text)) => text,
                Some(Value::Object(object)) => match object.get("content") {
                    Some(Value::String(text)) => text,
                    _ => continue,
                },
                _ => continue,
            };
            if inner.token_to_id(token).is_none() {
                return Err(TokenizerError::UnknownToken { path: config_path, role, token: token.clone() });
            }
            special_tokens.push((role.to_string(), token.clone()));
        }

        let mut stop_ids: Vec<i32> = special_tokens
            .iter()
            .filter(|(role, _)| role == "eos_token")
            .filter_map(|(_, token)| inner.token_to_id(token))
            .map(|id| id as i32)
            .collect();
        let generation_path = dir.join("generation_config.json");
        let ids = match read_json_object(&generation_path)?.unwrap_or_default().remove("eos_token_id") {
            Some(Value::Array(ids)) => ids,
            None | Some(Value::Null) => Vec::new(),
            Some(id) => vec![id],
        };
        for id in ids {
            let known = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| inner.id_to_token(*id).is_some());
            let Some(known) = known else {
                let reason = format!("eos_token_id {id} is not an id of tokenizer.json");
                return Err(TokenizerError::Format { path: generation_path, reason });
            };
            stop_ids.push(known as i32);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        if stop_ids.is_empty() {
            let reason = "neither eos_token here nor eos_token_id in generation_config.json says what ends a turn";
            return Err(TokenizerError::Format { path: config_path, reason: reason.to_string() });
        }
        Ok(Self { inner, special_tokens, stop_ids })
    }

    /// The ids of `text`, none added.
    ///
    /// # Errors
    /// Where the library fails; byte-level tokenizers accept every text.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|e| TokenizerError::Encode { length: text.len(), reason: e.to_string() })?;
        Ok(encoding.get_ids().iter().map(|id| *id as i32).collect())
    }

    /// The text of `ids`, added tokens included. Bytes that are not UTF-8 become U+FFFD, and ids beyond the vocabulary
    /// (a model may have more rows than its tokenizer has tokens) become nothing: the ids are the truth, the text is
    /// for reading and parsing.
    ///
    /// # Errors
    /// Where an id is negative, or the library fails.
    pub fn decode(&self, ids: &[i32]) -> Result<String, TokenizerError> {
        let ids: Vec<u32> = ids
            .iter()
            .map(|id| u32::try_from(*id).map_err(|_| TokenizerError::NegativeId(*id)))
            .collect::<Result<_, _>>()?;
        self.inner.decode(&ids, false).map_err(|e| TokenizerError::Encode { length: ids.len(), reason: e.to_string() })
    }

    /// The text of one token as a reader sees it, or `None` beyond the vocabulary.
    pub fn token_text(&self, id: i32) -> Option<String> {
        let id = u32::try_from(id).ok()?;
        self.inner.id_to_token(id)?;
        self.inner.decode(&[id], false).ok()
    }

    /// The id of exactly this token, or `None`.
    pub fn token_id(&self, token: &str) -> Option<i32> {
        self.inner.token_to_id(token).map(|id| id as i32)
    }

    /// How many tokens there are, added ones included. A model's `vocab_size` is at least this.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The ids that end a turn; sorted, at least one.
    pub fn stop_ids(&self) -> &[i32] {
        &self.stop_ids
    }

    /// Special tokens by their name in a chat template: `("eos_token", "<|im_end|>")`.
    pub fn special_tokens(&self) -> &[(String, String)] {
        &self.special_tokens
    }
}

/// Learns a byte-level BPE of exactly `vocab_size` tokens, writes `tokenizer.json` and `tokenizer_config.json` into
/// `dir`, and loads it from there. The files are those of Hugging Face's `PreTrainedTokenizerFast`.
///
/// `tokens` are the added tokens with whether each is special; they get the first ids. `<|im_end|>` among them ends a
/// turn, and `<|endoftext|>` pads. All 256 bytes are in the vocabulary, so every text can be encoded and decodes to
/// itself. The same corpus in the same order gives the same files.
///
/// # Errors
/// Where the corpus is too small for `vocab_size`, or a file cannot be written.
pub fn train_bpe<I>(
    corpus: I,
    vocab_size: usize,
    tokens: &[(&str, bool)],
    dir: &Path,
) -> Result<Tokenizer, TokenizerError>
where
    I: Iterator<Item = String> + Send,
{
    let path = dir.join("tokenizer.json");
    let failed = |e: tokenizers::Error| TokenizerError::Format { path: path.clone(), reason: e.to_string() };

    let pattern = SplitPattern::Regex(BASE_SPLIT.to_string());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
    let bytes = ByteLevel::new(false, false, false);
    let mut inner: TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper> =
        TokenizerImpl::new(BPE::default());
    inner
        .with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])))
        .with_post_processor(Some(bytes))
        .with_decoder(Some(bytes));

    let added: Vec<AddedToken> = tokens.iter().map(|(text, special)| AddedToken::from(*text, *special)).collect();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(added)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    // Added tokens that stand in the corpus are cut out, as they are when a text is encoded: else merges are spent on
    // their letters.
    let pieces = corpus.flat_map(|text| without_tokens(text, tokens));
    inner.train(&mut trainer, pieces).map_err(failed)?;
    let got = inner.get_vocab_size(true);
    if got != vocab_size {
        return Err(TokenizerError::SmallCorpus { got, wanted: vocab_size });
    }

    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "add_prefix_space": false,
    });
    for (role, token) in [("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")] {
        if tokens.iter().any(|(text, _)| *text == token) {
            config[role] = Value::from(token);
        }
    }
    let text = inner.to_string(true).map_err(failed)?;
    write(&path, &text)?;
    write(&dir.join("tokenizer_config.json"), &format!("{config:#}\n"))?;
    Tokenizer::load(dir)
}

/// What of `text` stands between the added tokens.
fn without_tokens(text: String, tokens: &[(&str, bool)]) -> Vec<String> {
    let mut pieces = vec![text];
    for (token, _) in tokens {
        if pieces.iter().any(|piece| piece.contains(token)) {
            pieces = pieces.iter().flat_map(|piece| piece.split(token)).map(String::from).collect();
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

fn write(path: &Path, text: &str) -> Result<(), TokenizerError> {
    std::fs::write(path, text).map_err(|source| TokenizerError::Io { path: path.to_path_buf(), source })
}

/// The object in a JSON file, or `None` where there is no such file.
pub(crate) fn read_json_object(path: &Path) -> Result<Option<Map<String, Value>>, TokenizerError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TokenizerError::Io { path: path.to_path_buf(), source }),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(TokenizerError::Format { path: path.to_path_buf(), reason: "it is no JSON object".to_string() }),
        Err(e) => Err(TokenizerError::Format { path: path.to_path_buf(), reason: e.to_string() }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::{Arc, OnceLock};

    /// Text of the kind that the base policy reads, enough for a vocabulary of 380.
    fn corpus() -> Vec<String> {
        let mut texts = Vec::new();
        for i in 0..40 {
            texts.push(format!(
                "<|im_start|>user\nPlease look up order A{i:04} for the red lamp, it has not arrived.<|im_end|>\n\
                 <|im_start|>assistant\n<tool_call>\n{{\"name\": \"get_order\", \"arguments\": {{\"id\": \"A{i:04}\"}}}}\n\
                 </tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n{{\"item\": \"lamp\", \"status\": \"shipped\", \
                 \"total\": {i}}}\n</tool_response><|im_end|>\nYou are a helpful service agent. Tools and policy follow.\n\n"
            ));
        }
        texts
    }

    /// A tokenizer of 380 tokens, trained once for all tests of the crate.
    pub(crate) fn small() -> Arc<Tokenizer> {
        static SMALL: OnceLock<Arc<Tokenizer>> = OnceLock::new();
        let make = || {
            let dir = tempfile::tempdir().unwrap();
            Arc::new(train_bpe(corpus().into_iter(), 380, &BASE_TOKENS, dir.path()).unwrap())
        };
        Arc::clone(SMALL.get_or_init(make))
    }

    proptest! {
        #[test]
        fn every_text_decodes_to_itself(text in "(\\PC|\n|<\\|im_end\\|>|<tool_call>){0,40}") {
            let tokenizer = small();
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn training_twice_gives_the_same_files() {
        let files = |vocab| {
            let dir = tempfile::tempdir().unwrap();
            train_bpe(corpus().into_iter(), vocab, &BASE_TOKENS, dir.path()).unwrap();
            ["tokenizer.json", "tokenizer_config.json"]
                .map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap())
        };
        let first = files(380);
        for _ in 0..3 {
            assert_eq!(files(380), first);
        }
    }

    #[test]
    fn added_tokens_have_the_first_ids_and_no_merge_is_spent_on_their_letters() {
        let tokenizer = small();
        for (id, (token, _)) in BASE_TOKENS.iter().enumerate() {
            assert_eq!(tokenizer.encode(token).unwrap(), [id as i32]);
            assert_eq!(tokenizer.token_text(id as i32).as_deref(), Some(*token));
        }
        assert_eq!(tokenizer.vocab_size(), 380);
        assert_eq!(tokenizer.stop_ids(), [2]);
        let vocabulary: Vec<String> = (0..380).filter_map(|id| tokenizer.token_text(id)).collect();
        assert!(!vocabulary.iter().skip(BASE_TOKENS.len()).any(|text| text.contains("<|") || text.contains("im_")));
    }

    #[test]
    fn digits_stand_alone_and_a_word_keeps_its_space_and_its_underscores() {
        let tokenizer = small();
        let pieces = |text: &str| -> Vec<String> {
            tokenizer.encode(text).unwrap().iter().map(|id| tokenizer.token_text(*id).unwrap()).collect()
        };
        assert_eq!(pieces("A0123"), ["A", "0", "1", "2", "3"]);
        assert_eq!(pieces(" look up order A0001"), [" look", " up", " order", " A", "0", "0", "0", "1"]);
        assert_eq!(pieces("get_order"), ["get_order"]);
        assert_eq!(pieces("{\"name\": \"get_order\""), ["{\"", "name", "\": \"", "get_order", "\""]);
    }

    #[test]
    fn ids_that_decode_to_text_may_encode_otherwise_so_only_ids_are_the_truth() {
        let tokenizer = small();
        let spelled: Vec<i32> =
            ["P", "l", "e", "a", "s", "e"].map(|letter| tokenizer.token_id(letter).unwrap()).to_vec();
        let text = tokenizer.decode(&spelled).unwrap();
        assert_eq!(text, "Please");
        assert_ne!(tokenizer.encode(&text).unwrap(), spelled);
    }

    #[test]
    fn a_corpus_too_small_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = train_bpe(["abab abab".to_string()].into_iter(), 400, &BASE_TOKENS, dir.path()).unwrap_err();
        assert!(matches!(error, TokenizerError::SmallCorpus { wanted: 400, .. }), "{error}");
    }

    #[test]
    fn what_the_configuration_names_must_be_in_the_vocabulary() {
        let dir = tempfile::tempdir().unwrap();
        train_bpe(corpus().into_iter(), 300, &BASE_TOKENS, dir.path()).unwrap();
        let config = dir.path().join("tokenizer_config.json");
        std::fs::write(&config, r#"{"eos_token": {"content": "<|endoftext|>"}}"#).unwrap();
        std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [2, 0]}"#).unwrap();
        assert_eq!(Tokenizer::load(dir.path()).unwrap().stop_ids(), [0, 2]);

        std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": 300}"#).unwrap();
        assert!(matches!(Tokenizer::load(dir.path()).unwrap_err(), TokenizerError::Format { .. }));
        std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();

        std::fs::write(&config, r#"{"eos_token": "</s>"}"#).unwrap();
        assert!(matches!(Tokenizer::load(dir.path()).unwrap_err(), TokenizerError::UnknownToken { .. }));
        std::fs::write(&config, "{}").unwrap();
        assert!(matches!(Tokenizer::load(dir.path()).unwrap_err(), TokenizerError::Format { .. }));
    }
}
