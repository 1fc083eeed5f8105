//! Convex hull of the transports of a parameter: each better than the one before at the best rate
//! that is left.

use crate::cost::{Cost, GradientTransport};

/// Returns the transport with the highest rate from `at` on, then the one with the highest rate
/// from there, until none has a rate; each with its change from the one before. Of equal rates the
/// last one is taken.
pub(super) fn hull<'a>(
    transports: impl Iterator<Item = &'a GradientTransport> + Clone,
    mut at: Cost,
    rate: impl Fn(&Cost, &GradientTransport) -> Option<f64>,
) -> Vec<(GradientTransport, Cost)> {
    let mut found = Vec::new();
    loop {
        let rated =
            transports.clone().filter_map(|transport| Some((rate(&at, transport)?, transport)));
        let Some((_, next)) = rated.max_by(|a, b| a.0.total_cmp(&b.0)) else { return found };
        found.push((*next, next.change - at));
        at = next.change;
    }
}
