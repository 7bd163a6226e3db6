//! `trace config show | check`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Done;
use crate::config::show::{Detail, to_toml};
use crate::config::{Config, ConfigFile, compare};
use crate::pretrain::PretrainConfig;

/// Configurations.
#[derive(Subcommand)]
pub enum Command {
    /// Prints the effective configuration: the file, its overrides, and the defaults of all that they leave open.
    ///
    /// What is printed is a configuration file itself. Without a file, it is the defaults: a start for your own.
    Show {
        #[command(flatten)]
        source: Source,
        /// Leave out the documentation of the keys.
        #[arg(long)]
        brief: bool,
    },
    /// Reads a configuration as `trace run` would and says whether it can be used.
    ///
    /// An unknown key, a value of the wrong type or an impossible combination is an error that names the place.
    Check {
        #[command(flatten)]
        source: Source,
    },
}

/// Where a configuration comes from.
#[derive(Args)]
pub struct Source {
    /// The configuration file; the defaults without one.
    file: Option<PathBuf>,
    /// Sets one key, such as `train.k=8`; can be given several times.
    #[arg(long = "set", value_name = "TABLE.KEY=VALUE")]
    overrides: Vec<String>,
    /// The file is one for `trace pretrain`.
    #[arg(long)]
    pretrain: bool,
}

impl Source {
    fn read<T: ConfigFile>(&self) -> miette::Result<T> {
        Ok(match &self.file {
            Some(file) => T::load(file, &self.overrides)?,
            None => T::parse("the defaults", "", &self.overrides)?,
        })
    }
}

pub(super) fn run(command: &Command) -> Done {
    match command {
        Command::Show { source, brief } => {
            let detail = if *brief { Detail::Values } else { Detail::Documented };
            let text = if source.pretrain {
                to_toml(&source.read::<PretrainConfig>()?, detail)
            } else {
                to_toml(&source.read::<Config>()?, detail)
            };
            print!("{text}");
        }
        Command::Check { source } if source.pretrain => {
            let config: PretrainConfig = source.read()?;
            println!("can be used; writes a base policy to {}", config.out.display());
        }
        Command::Check { source } => {
            let config: Config = source.read()?;
            let digest = compare::digest(&config);
            println!(
                "can be used; run {} in {}, digest {}",
                config.run.name,
                config.run_dir().display(),
                &digest[..12]
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
