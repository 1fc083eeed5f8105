//! What the planner writes, as it is run.

use thinwire_model::{AttentionKind, Gpt};
use thinwire_plan::cost::{Coding, Division, Precision, Sharding as Divided};
use thinwire_plan::report::{ActivationFile, PlanFile, plan_file};
use thinwire_plan::search::{Candidate, Found, Planner, Rule, Settings};
use thinwire_plan::{Cluster, Error};
use thinwire_program::{Instruction, Plan, Program, Sharding, program};
use thinwire_wire::{HEADER_BYTES, Rank};

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

/// Two nodes of two devices with so many bytes of memory each, and so many Gbit/s between nodes.
fn cluster(bytes: f64, gbit: f64) -> Cluster {
    let (gib, inner) = (bytes / f64::from(1 << 30), 10.0 * gbit);
    let text = format!(
        "[[device]]\nname = \"core\"\ntflops = 0.001\nmemory_gib = {gib:e}\nmemory_gbyte_per_s = 1\n\
         [[level]]\nname = \"node\"\nsize = 2\nlatency_us = 1\ngbit = {inner}\n\
         [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 1\ngbit = {gbit}\n"
    );
    Cluster::parse(&text).unwrap()
}

fn planned(candidate: &Candidate, bytes: f64) -> Result<PlanFile, Error> {
    found(candidate, bytes, &[]).map(|(file, _)| file)
}

/// A plan whose activations may travel by these codecs; with any, on links so thin that it pays.
fn found(candidate: &Candidate, bytes: f64, codecs: &[&str]) -> Result<(PlanFile, Found), Error> {
    let codings = codecs.iter().map(|name| Coding::of_activations(name));
    let settings = Settings {
        precision: Precision::SINGLE,
        activation_codings: codings.collect::<Result<_, _>>()?,
        ..Settings::default()
    };
    let mut planner = Planner::new(4 * candidate.micro_batches, settings, |batch| {
        MODEL.graph(batch, 4).map_err(|error| Error::from_model(&error))
    });
    let cluster = cluster(bytes, if codecs.is_empty() { 1.0 } else { 1e-3 });
    let found = planner.plan_for(&cluster, candidate)?;
    let file = plan_file("small", 4, &planner, &cluster, &found)?;
    Ok((file, found))
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

/// Bytes of the messages that a rank sends to the next stage with every micro-batch.
fn sent_on(program: &Program) -> usize {
    let messages = program.forward.iter().flatten().filter_map(|one| match one {
        Instruction::Send { slot, to, .. } => Some((*slot, *to)),
        _ => None,
    });
    let bytes = |(slot, to): (usize, Rank)| {
        let elements: usize = program.slots[slot].shape.iter().product();
        program.message_codec(slot, to).encoded_len(elements) + HEADER_BYTES
    };
    messages.map(bytes).sum()
}

#[test]
fn messages_are_as_long_as_they_were_planned() {
    let model = Model::new(MODEL.graph(4, 4).unwrap());
    let division = Division::Alike(Divided::Optimizer);
    let rule = Rule::Data;
    for (stages, mesh) in [(2, vec![2]), (4, vec![1])] {
        let candidate = Candidate { stages, mesh, micro_batches: 2, division, rule };
        for codecs in [&[][..], &["int8"], &["f16"]] {
            let (file, found) = found(&candidate, 1e9, codecs).unwrap();
            assert_eq!(file.activation.is_empty(), codecs.is_empty());
            let plan = Plan::of_file(&file, &model.graph).unwrap();
            for rank in 0..4 {
                let program = program(&model.training, &plan, Rank(rank)).unwrap();
                let stage = &found.best.stages[program.mesh.stage];
                let last = program.mesh.stage + 1 == stages;
                let header = if last { 0 } else { HEADER_BYTES };
                let what = format!("{stages} stages, {codecs:?}, rank {rank}");
                assert_eq!(sent_on(&program) as f64, stage.message_bytes + header as f64, "{what}");
            }
        }
    }
}

#[test]
fn what_is_planned_with_codecs_of_activations_runs() {
    let model = Model::new(MODEL.graph(4, 4).unwrap());
    let division = Division::Each;
    let rule = Rule::Free;
    for (stages, mesh) in [(2, vec![2]), (1, vec![2, 2]), (4, vec![1])] {
        let candidate = Candidate { stages, mesh, micro_batches: 2, division, rule };
        let (file, _) = found(&candidate, 1e9, &["int8", "bf16"]).unwrap();
        let plan = Plan::of_file(&file, &model.graph).unwrap();
        model.is_near_alone(&plan, &format!("{candidate:?}: {:?}", file.activation));
    }
}

#[test]
fn codecs_of_activations_that_cannot_be_are_refused() {
    let division = Division::Each;
    let candidate =
        Candidate { stages: 2, mesh: vec![2], micro_batches: 2, division, rule: Rule::Data };
    let (file, _) = found(&candidate, 1e9, &["int8"]).unwrap();
    let graph = MODEL.graph(4, 4).unwrap();
    let refused = |edit: &dyn Fn(&mut ActivationFile)| {
        let mut file = file.clone();
        file.activation.iter_mut().for_each(edit);
        Plan::of_file(&file, &graph).unwrap_err().to_string()
    };
    let error = refused(&|one| one.name = "vote".to_owned());
    assert!(error.contains("codec vote loses "), "{error}");
    let error = refused(&|one| one.name = "zip".to_owned());
    assert!(error.contains("unknown codec 'zip'"), "{error}");
    let error = refused(&|one| (one.level, one.within) = (Some("pod".to_owned()), None));
    assert!(error.contains("expected the number of devices within which"), "{error}");
}
