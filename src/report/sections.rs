//! The sections of the page, in the order in which a reader wants them: the result, then what led to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Inputs;
use super::charts::{Bar, Curve, Spread, colour, curves, intervals, thresholds};
use super::html::{escape, or_dash, percent, table};
use crate::analyze::Record;
use crate::record::evaluation::{ArmResult, Conversation, Evaluation};
use crate::record::metrics::{CalibrationMetric, DevMetric, GateMetric, Metric, TrainMetric};

/// All sections for which there is something to show.
pub(super) fn all(inputs: &Inputs) -> String {
    let mut out = String::new();
    if let Some(evaluation) = &inputs.evaluation {
        out += &pass_rates(evaluation);
    }
    if let Some(analysis) = &inputs.analysis {
        out += &capabilities(analysis);
    }
    let mut calibration: Vec<&CalibrationMetric> = Vec::new();
    let mut train: BTreeMap<&str, Vec<&TrainMetric>> = BTreeMap::new();
    let mut dev: BTreeMap<&str, Vec<&DevMetric>> = BTreeMap::new();
    let mut gates: Vec<&GateMetric> = Vec::new();
    for metric in &inputs.metrics {
        match metric {
            Metric::Calibration(m) => calibration.push(m),
            Metric::Train(m) => train.entry(&m.learner).or_default().push(m),
            Metric::Dev(m) => dev.entry(&m.learner).or_default().push(m),
            Metric::Gate(m) => gates.push(m),
        }
    }
    if !calibration.is_empty() {
        out += &calibrations(&calibration);
    }
    if !train.is_empty() {
        out += &training(&train, &dev);
        out += &signal(&train);
    }
    if let Some(evaluation) = &inputs.evaluation {
        out += &checks(evaluation);
    }
    if !gates.is_empty() {
        out += &gate_rounds(&gates, inputs.evaluation.as_ref());
    }
    if let Some(conversation) = inputs.evaluation.as_ref().and_then(|evaluation| evaluation.conversation.as_ref()) {
        out += &conversation_section(conversation);
    }
    if out.is_empty() {
        out = section("Nothing yet", "<p>No step of this run has finished.</p>");
    }
    out
}

fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escape(title))
}

fn pass_rates(evaluation: &Evaluation) -> String {
    let bars: Vec<Bar> = evaluation
        .arms
        .iter()
        .map(|arm| Bar {
            label: arm.name.clone(),
            value: arm.pass_rate.value,
            interval: arm.pass_rate.interval,
            strong: arm.routed,
        })
        .collect();
    let rollouts = &evaluation.rollouts;
    let mut body = format!(
        "<p>{} test tasks of {} × {} trials at temperature {}, seed {}. Whiskers are {} % intervals from a bootstrap over \
         tasks. Sampled before: {} rollouts ({} base, {} calibration, {} training, {} for gates).</p>\n{}",
        evaluation.tasks,
        escape(&evaluation.environment),
        evaluation.trials,
        evaluation.temperature,
        evaluation.seed,
        evaluation.confidence * 100.0,
        rollouts.total(),
        rollouts.base,
        rollouts.calibrate,
        rollouts.train,
        rollouts.gate,
        intervals(&bars, "pass rate of each arm")
    );
    let ks: BTreeSet<u64> = evaluation.arms.iter().flat_map(|arm| arm.pass_hat.iter().map(|(k, _)| *k)).collect();
    let mut header = vec!["arm".to_owned(), "pass rate, %".to_owned(), "interval".to_owned()];
    header.extend(ks.iter().filter(|k| **k > 1).map(|k| format!("pass^{k}")));
    header.extend(ks.iter().filter(|k| **k > 1).map(|k| format!("pass@{k}")));
    let greedy = evaluation.arms.iter().any(|arm| arm.greedy.is_some());
    if greedy {
        header.push("greedy, %".to_owned());
    }
    header.extend(["rollouts".to_owned(), "episodes".to_owned(), "failed to run".to_owned()]);
    let row = |arm: &ArmResult| {
        let interval = arm.pass_rate.interval;
        let mut cells = vec![
            escape(&arm.name),
            percent(arm.pass_rate.value),
            format!("{} – {}", percent(interval.low), percent(interval.high)),
        ];
        for figures in [&arm.pass_hat, &arm.pass_at] {
            let figure = |k: &u64| figures.iter().find(|(other, _)| other == k).map(|(_, value)| *value);
            cells.extend(ks.iter().filter(|k| **k > 1).map(|k| or_dash(figure(k), 3)));
        }
        if greedy {
            cells.push(or_dash(arm.greedy.map(|estimate| estimate.value * 100.0), 1));
        }
        cells.extend([arm.rollouts.to_string(), arm.episodes.to_string(), arm.left_out.to_string()]);
        cells
    };
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    body += &table(&header, &evaluation.arms.iter().map(row).collect::<Vec<_>>());
    if !evaluation.differences.is_empty() {
        let rows: Vec<Vec<String>> = evaluation
            .differences
            .iter()
            .map(|difference| {
                let estimate = difference.difference;
                let class = match (estimate.interval.low > 0.0, estimate.interval.high < 0.0) {
                    (true, _) => "good",
                    (_, true) => "bad",
                    _ => "soft",
                };
                vec![
                    format!("{} − {}", escape(&difference.arm), escape(&difference.against)),
                    format!("<span class=\"{class}\">{:+.1}</span>", estimate.value * 100.0),
                    format!("{:+.1} – {:+.1}", estimate.interval.low * 100.0, estimate.interval.high * 100.0),
                ]
            })
            .collect();
        body += &table(&["difference, paired over tasks", "points", "interval"], &rows);
    }
    section("Pass rates on test tasks", &body)
}

fn capabilities(analysis: &Record) -> String {
    let rule = analysis.rule;
    let rows = |value: fn(&crate::analyze::select::RunMeasure) -> Option<f64>,
                mean: fn(&crate::analyze::CapabilityMeasure) -> Option<f64>| {
        let spread = |capability: &crate::analyze::CapabilityMeasure| Spread {
            label: capability.name.clone(),
            values: capability.runs.iter().filter_map(value).collect(),
            mean: mean(capability),
            note: format!("{} of {}", capability.runs_passed, capability.runs.len()),
            strong: capability.kept,
        };
        analysis.capabilities.iter().map(spread).collect::<Vec<_>>()
    };
    let mut body = format!(
        "<p>{} failed and {} passed base rollouts; {} without a verdict are outside the sample. A capability is kept when gap and \
         coverage reach their thresholds in at least {} label runs (right margin); kept ones are blue. Small dots are label \
         runs over random halves of the tasks, large ones their mean.</p>\n",
        analysis.failed, analysis.passed, analysis.left_out, rule.keep
    );
    for warning in &analysis.warnings {
        let _ = writeln!(body, "<p class=\"warn\">{}</p>", escape(warning));
    }
    body += "<p class=\"lead\">Gap: how much more often it is lacking among failures than among passes</p>\n";
    let label = format!("at least {}", rule.delta);
    body += &thresholds(&rows(|run| run.gap, |c| c.mean_gap), rule.delta, &label, "gap of each capability");
    body += "<p class=\"lead\">Coverage: share of failures that lack it</p>\n";
    let label = format!("at least {}", rule.rho);
    body +=
        &thresholds(&rows(|run| run.coverage, |c| c.mean_coverage), rule.rho, &label, "coverage of each capability");
    section("Which capabilities the failures lack", &body)
}

fn calibrations(metrics: &[&CalibrationMetric]) -> String {
    let rows: Vec<Vec<String>> = metrics
        .iter()
        .map(|m| {
            let verdict = if m.rejected_for.is_empty() {
                "<span class=\"good\">accepted</span>".to_owned()
            } else {
                format!("<span class=\"bad\">{}</span>", escape(&m.rejected_for.join("; ")))
            };
            let pass_at = m.pass_at.iter().map(|(k, value)| format!("{value:.2} ({k})")).collect::<Vec<_>>().join(" ");
            vec![
                escape(&m.capability),
                if m.level == 0 { "mix".to_owned() } else { m.level.to_string() },
                m.rollouts.to_string(),
                or_dash(m.mean, 2),
                or_dash(m.std, 2),
                or_dash(m.success, 2),
                format!("{:.2}", m.all_zero),
                format!("{:.2}", m.all_success),
                format!("{:.2}", m.informative),
                pass_at,
                verdict,
            ]
        })
        .collect();
    let header = [
        "environment",
        "level",
        "rollouts",
        "mean",
        "std",
        "success",
        "all 0",
        "all 1",
        "informative",
        "pass@k (k)",
        "verdict",
    ];
    let intro = "<p>The base policy in each capability environment, sampled as in training. All 0, all 1 and informative are \
                 shares of groups.</p>\n";
    section("Calibration of the environments", &(intro.to_owned() + &table(&header, &rows)))
}

fn training(train: &BTreeMap<&str, Vec<&TrainMetric>>, dev: &BTreeMap<&str, Vec<&DevMetric>>) -> String {
    let mut body = "<p>Mean reward over iterations: the line is what was sampled for training, dots are evaluations on dev seeds, \
                    and the ring is the adapter that was kept.</p>\n<div class=\"grid\">\n"
        .to_owned();
    for (learner, metrics) in train {
        let sampled = metrics.iter().filter_map(|m| Some((f64::from(m.iteration), m.reward?))).collect();
        let none = Vec::new();
        let dev = dev.get(learner).unwrap_or(&none);
        let judged: Vec<(f64, f64)> = dev.iter().filter_map(|m| Some((f64::from(m.iteration), m.reward?))).collect();
        let kept = dev.iter().rfind(|m| m.best).and_then(|m| Some((f64::from(m.iteration), m.reward?)));
        let drawn = [
            Curve { label: format!("{learner}, train"), points: sampled, colour: 1, line: true, dots: 2.0 },
            Curve { label: format!("{learner}, dev"), points: judged, colour: 2, line: false, dots: 4.5 },
        ];
        let chart = curves(&drawn, kept, (300.0, 170.0), &format!("reward of {learner}"));
        let _ = writeln!(body, "<div><b>{}</b>{chart}</div>", escape(learner));
    }
    body += "</div>\n";
    section("Reward during training", &body)
}

fn signal(train: &BTreeMap<&str, Vec<&TrainMetric>>) -> String {
    let drawn: Vec<Curve> = train
        .iter()
        .enumerate()
        .map(|(index, (learner, metrics))| Curve {
            label: (*learner).to_owned(),
            points: metrics
                .iter()
                .filter(|m| m.groups > 0)
                .map(|m| (f64::from(m.iteration), m.informative as f64 / m.groups as f64))
                .collect(),
            colour: index + 1,
            line: true,
            dots: 2.0,
        })
        .collect();
    let legend: String = drawn
        .iter()
        .map(|curve| {
            format!(
                "<span><i class=\"swatch\" style=\"background:{}\"></i>{}</span>",
                colour(curve.colour),
                escape(&curve.label)
            )
        })
        .collect();
    let rows: Vec<Vec<String>> = train
        .iter()
        .map(|(learner, metrics)| {
            let sum = |count: fn(&TrainMetric) -> u64| metrics.iter().map(|m| count(m)).sum::<u64>();
            let (groups, informative) = (sum(|m| m.groups), sum(|m| m.informative));
            vec![
                escape(learner),
                sum(|m| m.rollouts).to_string(),
                groups.to_string(),
                informative.to_string(),
                or_dash((groups > 0).then(|| 100.0 * informative as f64 / groups as f64), 1),
                sum(|m| m.constant).to_string(),
                sum(|m| m.replaced).to_string(),
                sum(|m| m.left_out).to_string(),
            ]
        })
        .collect();
    let header =
        ["learner", "rollouts", "groups", "informative", "share, %", "constant", "replaced", "failed rollouts"];
    let body = format!(
        "<p>A group teaches only where its rollouts differ in reward. Share of such groups in each iteration.</p>\n\
         <div class=\"legend\">{legend}</div>\n{}{}",
        curves(&drawn, None, (860.0, 220.0), "share of informative groups"),
        table(&header, &rows)
    );
    section("Share of informative groups", &body)
}

fn checks(evaluation: &Evaluation) -> String {
    let names: Vec<&str> = evaluation
        .arms
        .first()
        .map(|arm| arm.capabilities.iter().map(|rate| rate.capability.as_str()).collect())
        .unwrap_or_default();
    if names.is_empty() {
        return String::new();
    }
    let mut header = vec!["arm"];
    header.extend(&names);
    let row = |arm: &ArmResult| {
        let mut cells = vec![escape(&arm.name)];
        cells.extend(names.iter().map(|name| {
            let rate = arm.capabilities.iter().find(|rate| rate.capability == *name && rate.applicable > 0);
            match rate {
                Some(rate) => {
                    let share = rate.present as f64 / rate.applicable as f64;
                    // White at 0, green at 1, readable throughout.
                    format!(
                        "<span class=\"swatch\" style=\"background:rgba(0,158,115,{share:.2});border:1px solid #cbd2d9\">\
                         </span>{}",
                        percent(share)
                    )
                }
                None => "–".to_owned(),
            }
        }));
        cells
    };
    let body = "<p>How often, in percent, each capability was there when a test task called for it, by process checks. An adapter \
                should raise its own column.</p>\n"
        .to_owned()
        + &table(&header, &evaluation.arms.iter().map(row).collect::<Vec<_>>());
    section("Adapters and the checks that they should fix", &body)
}

fn gate_rounds(gates: &[&GateMetric], evaluation: Option<&Evaluation>) -> String {
    let rows: Vec<Vec<String>> = gates
        .iter()
        .map(|m| {
            vec![
                m.round.to_string(),
                m.rollouts.to_string(),
                m.wins.to_string(),
                m.tokens.to_string(),
                format!("{:.3}", m.loss_first),
                format!("{:.3}", m.loss_last),
                percent(m.agreement),
            ]
        })
        .collect();
    let header = ["round", "rollouts", "wins", "tokens", "loss, first pass", "loss, last pass", "best slot chosen, %"];
    let mut body = table(&header, &rows);
    for arm in evaluation.iter().flat_map(|evaluation| &evaluation.arms).filter(|arm| !arm.slots.is_empty()) {
        let names = std::iter::once("base").chain(arm.adapters.iter().map(String::as_str));
        let rows: Vec<Vec<String>> =
            names.zip(&arm.slots).map(|(name, share)| vec![escape(name), percent(*share)]).collect();
        body += &table(&[&format!("slot of {} on test tasks", arm.name), "sampled tokens, %"], &rows);
    }
    section("Gates", &body)
}

fn conversation_section(conversation: &Conversation) -> String {
    let name = |slot: usize| conversation.slots.get(slot).map_or("?", String::as_str);
    let mut body = format!(
        "<p>Test seed {}, reward {}. Each token that the policy sampled has the colour of the slot that most layers chose.</p>\n\
         <div class=\"legend\">",
        conversation.seed, conversation.reward
    );
    for (slot, label) in conversation.slots.iter().enumerate() {
        let _ = write!(
            body,
            "<span><i class=\"swatch\" style=\"background:{}\"></i>{}</span>",
            colour(slot),
            escape(label)
        );
    }
    body += "</div>\n";
    for turn in &conversation.turns {
        let _ = write!(body, "<div class=\"turn\"><b>{}</b><div>", escape(&turn.role));
        for piece in &turn.pieces {
            let _ = match piece.slot {
                Some(slot) => write!(
                    body,
                    "<span title=\"{}\" style=\"background:{}55\">{}</span>",
                    escape(name(slot.into())),
                    colour(slot.into()),
                    escape(&piece.text)
                ),
                None => write!(body, "{}", escape(&piece.text)),
            };
        }
        body += "</div></div>\n";
    }
    section("One test conversation, token by token", &body)
}
