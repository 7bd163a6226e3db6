//! `trace doctor`: what this machine has and what is missing.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use console::style;
use serde_json::Value;

use super::{Done, FAILED, shown};
use crate::config::{Config, ConfigFile};

/// Says what this machine has (LibTorch and its version, threads, GPU, free disk, Python, a vLLM server if one is named) and
/// what to do about what is missing. Exit code 1 where something that every run needs is missing.
#[derive(clap::Args)]
pub struct Args {
    /// Also look at what this configuration needs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also look for a vLLM server here.
    #[arg(long, env = "TRACE_VLLM_URL", value_name = "URL")]
    vllm: Option<String>,
}

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Good,
    /// Something works less well, or only some runs need it.
    Note,
    /// No run works without it.
    Missing,
}

struct Finding {
    standing: Standing,
    what: &'static str,
    found: String,
}

fn finding(standing: Standing, what: &'static str, found: impl Into<String>) -> Finding {
    Finding { standing, what, found: found.into() }
}

pub(super) fn run(args: &Args) -> Done {
    let config = match &args.config {
        Some(file) => Config::load(file, &[])?,
        None => Config::default(),
    };
    let mut findings = vec![
        libtorch(),
        threads(&config),
        memory(),
        gpu(),
        disk(&config.run_dir()),
        python(),
        worker(),
        policy(&config),
    ];
    if let Some(url) = &args.vllm {
        findings.push(vllm(url)?);
    }
    for finding in &findings {
        let mark = match finding.standing {
            Standing::Good => style("ok     ").green(),
            Standing::Note => style("note   ").yellow(),
            Standing::Missing => style("MISSING").red().bold(),
        };
        println!("{mark} {:<12} {}", finding.what, finding.found);
    }
    let missing = findings.iter().any(|finding| finding.standing == Standing::Missing);
    Ok(if missing { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// Where the loaded LibTorch lies: the system knows.
fn libtorch() -> Finding {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let loaded =
        maps.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.ends_with("libtorch_cpu.so"));
    let folder = loaded.and_then(|path| Path::new(path).parent()?.parent());
    let version = folder.and_then(|folder| {
        let text =
            ["build-version", "version.py"].iter().find_map(|name| std::fs::read_to_string(folder.join(name)).ok())?;
        text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
            .find(|part| part.matches('.').count() >= 2)
            .map(str::to_owned)
    });
    match (folder, version) {
        (Some(folder), Some(version)) => {
            let good = if version.starts_with("2.13.") { Standing::Good } else { Standing::Note };
            let advice = if good == Standing::Good { "" } else { "; built for 2.13.0: run scripts/setup.sh" };
            finding(good, "LibTorch", format!("{version} in {}{advice}", folder.display()))
        }
        (Some(folder), None) => {
            finding(Standing::Good, "LibTorch", format!("in {}, version not stated", folder.display()))
        }
        (None, _) => finding(Standing::Note, "LibTorch", "linked, but its place cannot be read from /proc/self/maps"),
    }
}

fn threads(config: &Config) -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let used = if config.run.threads == 0 { cores } else { config.run.threads as usize };
    if used > cores {
        let found = format!("{used} asked for on {cores} cores: set run.threads = 0 for one each");
        return finding(Standing::Note, "threads", found);
    }
    finding(Standing::Good, "threads", format!("{used} on {cores} cores"))
}

fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    };
    match (kilobytes("MemAvailable:"), kilobytes("MemTotal:")) {
        (Some(free), Some(all)) => {
            let (free, all) = (free / f64::from(1 << 20), all / f64::from(1 << 20));
            let standing = if free < 3.0 { Standing::Note } else { Standing::Good };
            let advice = if free < 3.0 { "; the embedded default needs about 3" } else { "" };
            finding(standing, "memory", format!("{free:.1} of {all:.1} GiB free{advice}"))
        }
        _ => finding(Standing::Note, "memory", "cannot be read from /proc/meminfo"),
    }
}

fn gpu() -> Finding {
    if tch::Cuda::is_available() {
        return finding(Standing::Good, "GPU", format!("{} usable by LibTorch", tch::Cuda::device_count()));
    }
    let listed = Command::new("nvidia-smi").arg("-L").output().ok().filter(|output| output.status.success());
    match listed {
        Some(output) => {
            let names = String::from_utf8_lossy(&output.stdout).lines().count();
            let advice = "this LibTorch is the CPU one: remove .libtorch and run scripts/setup.sh, then build again";
            finding(Standing::Note, "GPU", format!("{names} in this machine, but {advice}"))
        }
        None => finding(Standing::Good, "GPU", "none; everything runs on the CPU"),
    }
}

fn disk(run: &Path) -> Finding {
    // The run may not exist yet: its nearest existing parent is on the same file system.
    let place = run.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    match free_bytes(place) {
        Some(bytes) => {
            let free = bytes as f64 / f64::from(1 << 30);
            let standing = if free < 2.0 { Standing::Note } else { Standing::Good };
            let advice = if free < 2.0 { "; a run of the embedded default takes up to 2" } else { "" };
            finding(standing, "disk", format!("{free:.1} GiB free for {}{advice}", run.display()))
        }
        None => finding(Standing::Note, "disk", format!("free space of {} cannot be read", place.display())),
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).ok().filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| c".".to_owned());
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and statvfs fills the whole struct where it returns 0.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    Some(stat.f_bavail * stat.f_frsize)
}

fn python() -> Finding {
    match Command::new("python3").arg("--version").output() {
        Ok(output) if output.status.success() => {
            finding(Standing::Good, "Python", String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => finding(
            Standing::Note,
            "Python",
            "no python3: only scripts/setup.sh needs it, to fetch LibTorch (Debian: apt-get install python3 python3-pip)",
        ),
    }
}

fn worker() -> Finding {
    match trace_envs::sandbox::find_worker() {
        Ok(path) => finding(Standing::Good, "env worker", path.display().to_string()),
        Err(error) => finding(Standing::Missing, "env worker", error.to_string()),
    }
}

fn policy(config: &Config) -> Finding {
    let folder = &config.policy.model;
    let missing: Vec<&str> = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        .into_iter()
        .filter(|name| !folder.join(name).is_file())
        .collect();
    if missing.is_empty() {
        return finding(Standing::Good, "base policy", folder.display().to_string());
    }
    let advice =
        "set policy.model, start `trace` in the checkout, or make it with `trace pretrain configs/base-policy.toml`";
    finding(Standing::Missing, "base policy", format!("{} lacks {}: {advice}", folder.display(), missing.join(", ")))
}

/// Asks the server which models it serves.
fn vllm(url: &str) -> miette::Result<Finding> {
    let models = format!("{}/v1/models", url.trim_end_matches('/').trim_end_matches("/v1"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(shown)?;
    let asked: Result<Value, reqwest::Error> = runtime.block_on(async {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
        client.get(&models).send().await?.error_for_status()?.json().await
    });
    Ok(match asked {
        Ok(reply) => {
            let names: Vec<&str> =
                reply["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
            finding(Standing::Good, "vLLM", format!("{url} serves {}", names.join(", ")))
        }
        Err(error) => finding(Standing::Missing, "vLLM", format!("{models}: {error}; start it, or change the address")),
    })
}
