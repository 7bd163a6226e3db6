//! The table of pass rates in the terminal.

use comfy_table::{Attribute, Cell, CellAlignment, Table, presets};

use super::html::percent;
use crate::record::Evaluation;

/// Pass rates with intervals, and each arm's difference to the base.
pub fn pass_rates(evaluation: &Evaluation, styled: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    if !styled {
        table.force_no_tty();
    }
    let greedy = evaluation.arms.iter().any(|arm| arm.greedy.is_some());
    let confidence = format!("{} % interval", evaluation.confidence * 100.0);
    let mut header = vec!["arm", "pass rate", &confidence, "vs base", "rollouts"];
    if greedy {
        header.push("greedy");
    }
    table.set_header(header.into_iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    for arm in &evaluation.arms {
        let versus = evaluation.differences.iter().find(|d| d.arm == arm.name && d.against == "base").map_or_else(
            String::new,
            |d| {
                let e = d.difference;
                let points = |x: f64| format!("{:+.1}", x * 100.0);
                format!("{} ({} to {})", points(e.value), points(e.interval.low), points(e.interval.high))
            },
        );
        let interval = arm.pass_rate.interval;
        let mut cells = vec![
            Cell::new(&arm.name),
            Cell::new(percent(arm.pass_rate.value)),
            Cell::new(format!("{} to {}", percent(interval.low), percent(interval.high))),
            Cell::new(versus),
            Cell::new(arm.rollouts),
        ];
        if greedy {
            cells.push(Cell::new(arm.greedy.map_or_else(String::new, |e| percent(e.value))));
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let left_out: u64 = evaluation.arms.iter().map(|arm| arm.left_out).sum();
    let mut caption = format!(
        "{} test tasks x {} trials, temperature {}; percent; intervals from a paired bootstrap over tasks",
        evaluation.tasks, evaluation.trials, evaluation.temperature
    );
    if left_out > 0 {
        caption += &format!("; {left_out} episodes failed to run and are left out");
    }
    format!("{table}\n{caption}\n")
}
