//! Laws of placement: which member of a level stands where, where links differ.

mod made;

use thinwire_plan::Cluster;
use thinwire_plan::cluster::Links;
use thinwire_plan::output::{PlanFile, report};
use thinwire_plan::search::{Found, Planner, Settings};

/// Nodes of two devices, with so many Gbit/s between each two.
fn cluster(gbit: &[Vec<f64>]) -> Cluster {
    let mut cluster = made::cluster(gbit.len(), 2, 1.0, 80.0);
    let bytes_per_s = gbit.iter().map(|row| row.iter().map(|rate| rate * 1e9 / 8.0).collect());
    let level = &mut cluster.levels[1];
    let latency_s = vec![vec![level.latency_s; gbit.len()]; gbit.len()];
    let order = (0..gbit.len()).collect();
    let mut links = Links { latency_s, bytes_per_s: bytes_per_s.collect(), order };
    (0..gbit.len()).for_each(|at| links.bytes_per_s[at][at] = f64::INFINITY);
    level.bytes_per_s = links.worst().bytes_per_s;
    level.links = Some(links);
    cluster
}

fn planner() -> Planner {
    made::planner(made::gpt(6, 1024, 512), 32, Settings::default())
}

fn placed(cluster: &Cluster) -> (Cluster, Found) {
    planner().placed(cluster).unwrap()
}

/// Nodes on a line, the even ones before the odd ones: thick links between neighbours, thin ones
/// between all others.
fn line(members: usize) -> Vec<Vec<f64>> {
    let place = |member: usize| member / 2 + member % 2 * members.div_ceil(2);
    let rate = |from: usize, to: usize| {
        if place(from).abs_diff(place(to)) == 1 { 400.0 } else { 20.0 }
    };
    (0..members).map(|from| (0..members).map(|to| rate(from, to)).collect()).collect()
}

#[test]
fn who_has_thick_links_becomes_neighbours() {
    for members in [4, 6] {
        let cluster = cluster(&line(members));
        let given = planner().plan(&cluster).unwrap();
        let mut planner = planner();
        let (arranged, found) = planner.placed(&cluster).unwrap();
        let (ours, theirs) = (found.best.seconds, given.best.seconds);
        assert!(ours < 0.9 * theirs, "{members}: {ours}, as the file has it {theirs}");
        assert!(found.bound_s <= ours);
        let order = arranged.order();
        let text = report(&planner, &arranged, &found).unwrap();
        assert!(
            text.contains("members of level 'pod', counted from 0, stand in the order "),
            "{text}"
        );
        let file = PlanFile::new("small", 256, &planner, &arranged, &found).unwrap();
        assert_eq!(PlanFile::parse(&file.text()).unwrap().devices, order);
        let twice =
            file.text().replacen(&format!("{order:?}"), &format!("{:?}", vec![0; order.len()]), 1);
        let error = PlanFile::parse(&twice).unwrap_err().to_string();
        assert!(error.starts_with("devices names 1 devices in "), "{error}");
    }
}

#[test]
fn equal_links_are_as_none() {
    let even = cluster(&vec![vec![25.0; 4]; 4]);
    let plain = made::cluster(4, 2, 25.0, 80.0);
    let (arranged, found) = placed(&even);
    let seconds = planner().plan(&plain).unwrap().best.seconds;
    assert!((found.best.seconds / seconds - 1.0).abs() < 1e-9, "{} {seconds}", found.best.seconds);
    assert!(arranged.order().is_empty());
    let (same, found) = placed(&plain);
    assert_eq!((same, found.best.seconds), (plain, seconds));
}

#[test]
fn how_members_are_numbered_does_not_matter() {
    let apart = [2, 10, 2, 50, 2, 2, 50, 50, 2, 50, 2, 2, 50, 50, 2, 2];
    let islands = [9, 200, 10, 10, 200, 9, 10, 10, 10, 10, 9, 200, 10, 10, 200, 9];
    for (rates, order) in [(apart, [0, 3, 1, 2]), (islands, [0, 2, 1, 3]), (islands, [3, 0, 2, 1])]
    {
        let gbit: Vec<Vec<f64>> =
            rates.chunks(4).map(|row| row.iter().map(|rate| f64::from(*rate)).collect()).collect();
        let row = |from: &usize| order.iter().map(|to| gbit[*from][*to]).collect();
        let turned: Vec<Vec<f64>> = order.iter().map(row).collect();
        let [one, other] = [gbit, turned].map(|gbit| {
            let cluster = cluster(&gbit);
            let (_, found) = placed(&cluster);
            let given = planner().plan(&cluster).unwrap().best.seconds;
            assert!(found.best.seconds <= given && found.bound_s <= found.best.seconds);
            found.best.seconds
        });
        assert!((one / other - 1.0).abs() < 0.01, "{rates:?} {order:?}: {one} {other}");
    }
}
