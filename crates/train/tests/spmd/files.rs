//! What the planner writes, as it is run.

use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::cost::{Division, Precision};
use thinwire_plan::output::PlanFile;
use thinwire_plan::search::{Candidate, Planner, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_train::spmd::{Plan, Sharding};

use crate::laws::Model;
use crate::models::CLASSES;

const MODEL: Gpt = Gpt {
    layers: 4,
    hidden: 8,
    heads: 2,
    feed_forward: 16,
    vocabulary: CLASSES,
    positions: 4,
    attention: AttentionKind::Fused,
    dropout: 0.1,
};

/// Two nodes of two devices with so many bytes of memory each.
fn cluster(bytes: f64) -> Cluster {
    let gib = bytes / f64::from(1 << 30);
    let text = format!(
        "[[device]]\nname = \"core\"\ntflops = 0.001\nmemory_gib = {gib:e}\nmemory_gbyte_per_s = 1\n\
         [[level]]\nname = \"node\"\nsize = 2\nlatency_us = 1\ngbit = 10\n\
         [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 1\ngbit = 1\n"
    );
    Cluster::parse(&text).unwrap()
}

fn planned(candidate: &Candidate, bytes: f64) -> Result<PlanFile, Error> {
    let settings = Settings { precision: Precision::SINGLE, ..Settings::default() };
    let mut planner = Planner::new(4 * candidate.micro_batches, settings, |batch| {
        MODEL.graph(batch, 4).map_err(|error| Error::from_model(&error))
    });
    let found = planner.plan_for(&cluster(bytes), candidate)?;
    PlanFile::new("small", 4, &planner, &cluster(bytes), &found)
}

/// A memory for which the planner gives up something but not everything.
fn tight(candidate: &Candidate, is_mixed: impl Fn(&PlanFile) -> bool) -> PlanFile {
    let sizes = (0..120).map(|step| 1e6 * 0.93_f64.powi(step));
    let plans = sizes.map_while(|bytes| planned(candidate, bytes).ok());
    plans.into_iter().find(|file| is_mixed(file)).expect("a memory that binds")
}

#[test]
fn some_blocks_compute_again_and_some_parameters_are_divided() {
    let model = Model::new(MODEL.graph(4, 4).unwrap());
    let candidate = |stages, mesh: &[usize]| Candidate {
        stages,
        mesh: mesh.to_vec(),
        micro_batches: 2,
        division: Division::Each,
        rule: Rule::Free,
    };
    for (stages, mesh) in [(1, &[2, 2][..]), (2, &[2])] {
        let candidate = candidate(stages, mesh);
        let some = |file: &PlanFile| !file.recomputed.is_empty();
        let file = tight(&candidate, some);
        let plan = Plan::of_file(&file, &model.graph).unwrap();
        let again = plan.blocks.iter().filter(|block| block.recompute).count();
        assert!((1..plan.blocks.len()).contains(&again), "{again} blocks");
        model.equals_alone(&plan, &format!("{again} blocks again, {stages} stages of {mesh:?}"));

        let divided = |file: &PlanFile| !file.division.is_empty();
        let file = tight(&candidate, divided);
        let plan = Plan::of_file(&file, &model.graph).unwrap();
        let first: Sharding = plan.sharding[0];
        assert!(plan.sharding.iter().any(|sharding| *sharding != first));
        model.equals_alone(&plan, &format!("divided, {stages} stages of {mesh:?}"));
    }
}

#[test]
fn a_file_that_names_what_is_not_there_is_refused() {
    let graph = MODEL.graph(4, 4).unwrap();
    let candidate = Candidate {
        stages: 1,
        mesh: vec![4],
        micro_batches: 1,
        division: Division::Each,
        rule: Rule::Free,
    };
    let mut file = planned(&candidate, 1e9).unwrap();
    file.recomputed = vec!["block.9".to_owned()];
    let error = Plan::of_file(&file, &graph).unwrap_err().to_string();
    assert!(error.contains("the model has no block 'block.9'"), "{error}");
}
