//! `trace pretrain`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Done, shown};
use crate::config::ConfigFile;
use crate::config::check::Violation;
use crate::pretrain::{PretrainConfig, Report, pretrain};

/// Makes a base policy from scripted demonstrations, in stages: skills first, habits that lack capabilities at known rates last.
///
/// Checkpoints are written as it goes; a second call goes on from the newest. The finished policy is a Hugging Face folder:
/// config.json, model.safetensors, tokenizer.json, tokenizer_config.json, chat_template.jinja.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration, such as configs/base-policy.toml; `trace config show --pretrain` documents every key.
    config: PathBuf,
    /// Sets one key, such as `threads=2`; can be given several times.
    #[arg(long = "set", value_name = "TABLE.KEY=VALUE")]
    overrides: Vec<String>,
}

impl ConfigFile for PretrainConfig {
    fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut refuse = |key, value: String, reason: &str| {
            found.push(Violation { key, value, line: None, reason: reason.to_owned() });
        };
        if self.stage.is_empty() {
            refuse("stage", "[]".to_owned(), "needs at least one [[stage]]");
        }
        for (index, stage) in self.stage.iter().enumerate() {
            let named = |name: &String| !name.is_empty() && !name.contains(['/', '\\', '.']);
            if !named(&stage.name) || self.stage[..index].iter().any(|other| other.name == stage.name) {
                refuse("stage.name", format!("{:?}", stage.name), "must be a folder's name, and each stage its own");
            }
            let probability = |p: &f64| (0.0..=1.0).contains(p);
            if stage.success.len() != 3 || !stage.success.iter().all(probability) {
                let reason = "must be three probabilities, one for each level";
                refuse("stage.success", format!("{:?}", stage.success), reason);
            }
            let shares = [
                ("stage.warmup", stage.warmup),
                ("stage.decay", stage.decay),
                ("stage.growth", stage.growth),
                ("stage.copy", stage.copy),
                ("stage.copy_last", stage.copy_last),
                ("stage.lookup", stage.lookup),
                ("stage.target", stage.target),
            ];
            for (key, share) in shares.into_iter().filter(|(_, share)| !probability(share)) {
                refuse(key, share.to_string(), "is a share, from 0 to 1");
            }
        }
        found
    }
}

pub(super) fn run(args: &Args) -> Done {
    let config = PretrainConfig::load(&args.config, &args.overrides)?;
    pretrain(&config, tell).map_err(shown)?;
    println!("base policy in {}", config.out.display());
    Ok(ExitCode::SUCCESS)
}

fn tell(report: &Report) {
    let left = (report.total.saturating_sub(report.tokens)) as f64 / report.rate.max(1e-9);
    eprint!(
        "{} {:>9} of {} tokens, step {}, loss {:.4}, {:.0} tokens/s, about {:.0} min left",
        report.stage,
        report.tokens,
        report.total,
        report.step,
        report.loss,
        report.rate,
        left / 60.0
    );
    for (name, probe) in [("target", report.target), ("worlds", report.worlds)] {
        if let Some(probe) = probe {
            eprint!(
                "; {name}: {:.2} % of tokens, {} of {} demonstrations exact",
                probe.accuracy() * 100.0,
                probe.exact,
                probe.demos
            );
        }
    }
    eprintln!();
}
