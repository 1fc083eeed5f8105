//! A robust plan beside the fastest one, scenario by scenario.

use std::fmt::Write;

use super::report::{describe, seconds};
use crate::search::{Measure, Robust};

/// What a robust plan takes in every scenario, what it saves and what it costs in the calm case.
pub fn robust_report(robust: &Robust) -> String {
    let what = match robust.measure {
        Measure::Worst => "the worst case".to_owned(),
        Measure::Tail(tail) => format!("the mean of the worst {:.0} %", 100.0 * tail),
    };
    let mut text = format!("{what} is made least by {}\n", describe(&robust.found.best));
    let _ = writeln!(
        text,
        "  {:20} {:>11} {:>12} {:>12}",
        "", "probability", "this plan", "fastest calm"
    );
    for (name, probability, [this, calm]) in &robust.rows {
        let (this, calm) = (seconds(*this), seconds(*calm));
        let _ = writeln!(text, "  {name:20} {probability:>11.2} {this:>12} {calm:>12}");
    }
    let [this, calm] = robust.measures();
    let saved = 100.0 * (1.0 - this / calm);
    let cost = robust.rows.first().map_or(0.0, |(_, _, [this, calm])| 100.0 * (this / calm - 1.0));
    let _ = writeln!(
        text,
        "{what} takes {}, {saved:.1} % less than that of the fastest calm plan",
        seconds(this)
    );
    // The calm search may have missed what a search elsewhere finds.
    let (costs, cost) = if cost < -0.05 { ("saves", -cost) } else { ("costs", cost.abs()) };
    let _ = writeln!(text, "in the calm case this {costs} {cost:.1} % of the step");
    if robust.measure == Measure::Worst {
        let (case, bound_s) = &robust.bound;
        let bound = seconds(*bound_s);
        let _ = writeln!(
            text,
            "no plan's worst case is below {bound}: no plan takes less in the case '{case}'"
        );
    }
    text
}
