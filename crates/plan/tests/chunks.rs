//! Stages of several chunks: the report names all of their blocks.

mod made;

use std::collections::HashSet;

use thinwire_plan::cost::{Division, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::{TrafficKind, explain, report, stage_blocks, traffic};
use thinwire_plan::search::{Candidate, Found, Planner, Rule, Settings};

/// Two stages of so many chunks, eight layers between an embedding and a head.
fn priced(chunks: usize) -> (Planner, Found) {
    staged([2, 2], chunks)
}

/// Stages of so many devices, with so many chunks each.
fn staged([stages, devices]: [usize; 2], chunks: usize) -> (Planner, Found) {
    let schedule = match chunks {
        1 => Schedule::OneForwardOneBackward,
        chunks => Schedule::Interleaved { chunks },
    };
    let settings = Settings { schedule: Some(schedule), ..Settings::of_executor() };
    let mut planner = made::planner(made::gpt(4 * stages, 256, 64), 2 * stages, settings);
    let (mesh, micro_batches, rule) = (vec![devices], stages, Rule::Free);
    let division = Division::Alike(Sharding::None);
    let candidate = Candidate { stages, mesh, micro_batches, division, rule };
    let found = planner.plan_for(&made::cluster(stages, devices, 25.0, 80.0), &candidate);
    (planner, found.unwrap())
}

#[test]
fn chunks_go_round_the_stages_and_have_all_blocks() {
    for chunks in [1, 2, 3, 4] {
        let (planner, found) = priced(chunks);
        let blocks = stage_blocks(&planner, &found.best).unwrap();
        assert!(blocks.iter().all(|ranges| ranges.len() == chunks), "{blocks:?}");
        let graph = &planner.prepared(&found.best.candidate).unwrap().graph;
        let (mut next, text) = (0, report(&planner, &made::cluster(2, 2, 25.0, 80.0), &found));
        let text = text.unwrap();
        for chunk in 0..chunks {
            for (stage, ranges) in blocks.iter().enumerate() {
                assert!(ranges[chunk].start == next && !ranges[chunk].is_empty(), "{blocks:?}");
                next = ranges[chunk].end;
                let line = text.lines().find(|line| line.starts_with(&format!("stage  {stage}")));
                let [from, to] =
                    [ranges[chunk].start, next - 1].map(|block| &graph.blocks[block].name[..]);
                let range = if from == to { from.to_owned() } else { format!("{from} to {to}") };
                assert!(line.unwrap().contains(&range), "{range} in {text}");
            }
        }
        assert_eq!(next, 10, "an embedding, eight layers and a head");
    }
}

#[test]
fn what_stages_send_alike_stands_in_their_order() {
    let (planner, found) = staged([12, 1], 1);
    let traffic = traffic(&planner, &made::cluster(12, 1, 25.0, 80.0), &found).unwrap();
    let messages = traffic.tensors.iter().filter(|one| one.kind == TrafficKind::Message);
    let names: Vec<&str> = messages.map(|one| &one.name[..]).collect();
    let expected: Vec<String> =
        (0..11).map(|stage| format!("stage {stage} to stage {}", stage + 1)).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_node_is_explained_by_the_names_of_its_own_block() {
    let (planner, found) = priced(1);
    let cluster = made::cluster(2, 2, 25.0, 80.0);
    for (asked, other) in [("block.3.mlp.up", "block.0."), ("block.0.mlp.up", "block.3.")] {
        let text = explain(&planner, &cluster, &found, asked).unwrap();
        let (table, sent) = text.split_once("of what it reads and writes:").unwrap();
        assert!(table.starts_with(&format!("{asked} in 2 stages of 2 devices, ")), "{text}");
        assert!(sent.contains(&format!("{asked}.weight")), "{text}");
        assert!(!text.contains(other), "{text}");
        let heads: Vec<&str> = table.lines().skip(3).take(2).collect();
        for (row, of_row) in [(0, "transfers"), (1, "once a step"), (1, "takes more")] {
            assert!(heads[row].contains(of_row), "{heads:?}");
        }
        let mut rows = table.lines().skip(3).take_while(|line| !line.is_empty());
        assert!(rows.all(|line| line.chars().count() == 82), "heads stand above columns: {text}");
    }
}

#[test]
fn dimensions_of_one_device_are_not_told() {
    let mut planner = made::planner(made::gpt(2, 256, 64), 4, Settings::of_executor());
    let division = Division::Alike(Sharding::None);
    let (stages, mesh, micro_batches, rule) = (1, vec![1, 4], 1, Rule::Free);
    let candidate = Candidate { stages, mesh, micro_batches, division, rule };
    let cluster = made::cluster(1, 4, 25.0, 80.0);
    let found = planner.plan_for(&cluster, &candidate).unwrap();
    let text = explain(&planner, &cluster, &found, "block.1.mlp.up").unwrap();
    let rows = text.lines().skip(5).take_while(|line| !line.is_empty());
    let cuts: Vec<&str> = rows.map(|row| row[2..].split(' ').next().unwrap()).collect();
    assert!(cuts.len() > 2 && cuts.iter().all(|cut| cut.len() == 1), "{text}");
    assert_eq!(cuts.iter().collect::<HashSet<_>>().len(), cuts.len(), "{text}");
}
