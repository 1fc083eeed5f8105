//! Codecs planned together with everything else, beside codecs that come after it.

use std::fmt::Write;

use super::report::{describe, seconds};
use crate::Error;
use crate::cluster::Cluster;
use crate::search::{Outcome, Planner, codecs_after};

/// A plan made together with codecs beside one that was made without, and that with codecs after.
///
/// # Errors
/// If the planner has not planned for this cluster.
pub fn compare(
    planner: &Planner,
    cluster: &Cluster,
    raw: &Outcome,
    together: &Outcome,
) -> Result<String, Error> {
    let after = codecs_after(planner, cluster, raw)?;
    let mut text = String::from("codecs and everything else:\n");
    for (name, plan) in [("no codecs", raw), ("codecs after", &after), ("together", together)] {
        let _ = writeln!(text, "  {name:14} {}  {}", seconds(plan.seconds), describe(plan));
    }
    let faster = 100.0 * (1.0 - together.seconds / after.seconds);
    let _ = writeln!(text, "together is {faster:.1} % faster than codecs after");
    Ok(text)
}
