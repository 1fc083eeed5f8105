//! The mesh: the stage of each device, and its place in the stage.

use thinwire_plan::search::Outcome;

use crate::svg::{drawing, text};

const WIDTH: usize = 960;
/// Largest number of squares that a page draws; of larger meshes whole stages are left out, and the
/// page says so.
const SQUARES: usize = 2048;
/// Colours of the style.
const COLOURS: usize = 8;

/// Draws a square per device, stage by stage.
pub fn mesh(plan: &Outcome) -> String {
    let (stages, outer) = (plan.candidate.stages, plan.candidate.mesh[0]);
    let inner: usize = plan.candidate.mesh[1..].iter().product();
    let shown = (SQUARES / (outer * inner)).clamp(1, stages);
    let (rows, columns) = if inner == 1 { folded(outer) } else { (inner, outer) };
    let side = (WIDTH / (columns + 1)).clamp(3, 12);
    let (wide, high) = (columns * side + 14, rows * side + 26);
    let across = (WIDTH / wide).clamp(1, shown);
    let height = shown.div_ceil(across) * high;
    let mut svg = String::new();
    for stage in 0..shown {
        let (left, top) = (stage % across * wide, stage / across * high);
        let number = [left as f64, top as f64 + 14.0];
        svg += &text("small", number, "start", &stage.to_string());
        for place in 0..(outer * inner).min(SQUARES) {
            let device = stage * outer * inner + place;
            let (column, row) = match inner {
                1 => (place % columns, place / columns),
                _ => (place / inner, place % inner),
            };
            let (x, y) = (left + column * side, top + 19 + row * side);
            let colour = stage % COLOURS + 1;
            svg += &format!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{0}\" height=\"{0}\" style=\"fill: var(--series-{colour})\"><title>device {device}: stage {stage}, place {1}, {2}</title></rect>\n",
                side - 1,
                place / inner,
                place % inner
            );
        }
    }
    let mut svg = drawing("mesh", height as f64, &svg);
    if shown < stages {
        svg += &format!("<p class=\"note\">The first {shown} of {stages} stages.</p>\n");
    }
    svg
}

/// Returns a caption that explains the squares.
pub fn caption(plan: &Outcome) -> String {
    let mesh = &plan.candidate.mesh;
    let (outer, inner) = (mesh[0], mesh[1..].iter().product::<usize>());
    let (rows, columns) = folded(outer);
    let order = match (inner, rows) {
        (1, 1) => "the ranks of a stage from left to right".to_owned(),
        (1, _) => format!("the ranks of a stage in order, in rows of {columns}"),
        _ => "the dimension of a stage’s mesh that is nearest runs from above to below, the first one from left to right".to_owned(),
    };
    format!("One square per device, coloured by its stage; {order}.")
}

/// Returns a mesh of one dimension folded into rows: at most a quarter as many rows as each has
/// squares.
fn folded(devices: usize) -> (usize, usize) {
    let columns = devices.min(16.max((2.0 * (devices as f64).sqrt()).ceil() as usize));
    (devices.div_ceil(columns), columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_of_one_dimension_is_folded_into_few_rows() {
        assert_eq!(
            [1, 16, 17, 64, 1024].map(folded),
            [(1, 1), (1, 16), (2, 16), (4, 16), (16, 64)]
        );
    }
}
