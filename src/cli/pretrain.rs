//! `trace pretrain`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Done, shown};
use crate::config::ConfigFile;
use crate::config::check::Violation;
use crate::pretrain::{PretrainConfig, Report, pretrain};

/// Makes a base policy from scripted demonstrations, in two stages: skills, then habits that lack capabilities at known rates.
///
/// Checkpoints are written as it goes; a second call goes on from the newest. The finished policy is a Hugging Face folder:
/// config.json, model.safetensors, tokenizer.json, tokenizer_config.json, chat_template.jinja.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration, such as configs/base-policy.toml; `trace config show --pretrain` documents every key.
    config: PathBuf,
    /// Sets one key, such as `habits.tokens=100000`; can be given several times.
    #[arg(long = "set", value_name = "TABLE.KEY=VALUE")]
    overrides: Vec<String>,
}

impl ConfigFile for PretrainConfig {
    fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let success = &self.habits.success;
        if success.len() != 3 || success.iter().any(|p| !(0.0..=1.0).contains(p)) {
            found.push(Violation {
                key: "habits.success",
                value: format!("{success:?}"),
                line: None,
                reason: "must be three probabilities, one for each level".to_owned(),
            });
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
