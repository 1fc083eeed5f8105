//! Laws of robust plans.

mod made;

use thinwire_plan::Cluster;
use thinwire_plan::cluster::Links;
use thinwire_plan::output::robust_report;
use thinwire_plan::search::{Measure, Planner, Robust, Scenario, Settings, robust, simulated_s};

fn cluster() -> Cluster {
    made::cluster(4, 2, 50.0, 80.0)
}

fn planner() -> Planner {
    made::planner(made::gpt(4, 512, 256), 96, Settings::default())
}

fn planned(text: &str, measure: Measure) -> Robust {
    let scenarios = Scenario::parse(text, &cluster()).unwrap();
    robust(&mut planner(), &cluster(), &scenarios, measure).unwrap()
}

#[test]
fn the_worst_case_is_no_worse_and_the_calm_one_no_better() {
    for measure in [Measure::Worst, Measure::Tail(0.3), Measure::Tail(1.0)] {
        let made =
            robust(&mut planner(), &cluster(), &Scenario::usual(&cluster()), measure).unwrap();
        let [this, calm] = made.measures();
        assert!(this <= calm, "{measure:?}: {this} {calm}");
        assert!(made.rows.iter().all(|(_, _, both)| both.iter().all(|s| s.is_finite())));
        if measure == Measure::Worst {
            assert!(made.bound.1 <= this);
        }
        let (_, _, [this, calm]) = &made.rows[0];
        assert!(*this >= calm * (1.0 - 1e-9), "{this} {calm}");
        assert!((made.found.best.seconds - this).abs() < 1e-12);
        // No plan gets faster by thinner links or slower devices; for fewer devices it is made anew.
        for (name, _, both) in made.rows[1..].iter().filter(|(name, ..)| !name.contains("lost")) {
            assert!(both[1] >= calm * (1.0 - 1e-9), "{name}");
        }
        assert!(robust_report(&made).contains("in the calm case this costs "));
    }
}

#[test]
fn nothing_that_befalls_changes_nothing() {
    let calm = Scenario {
        name: "calm too".to_owned(),
        probability: 0.1,
        bandwidth: 1.0,
        level: None,
        slower: 1.0,
        lost: 0,
    };
    let [this, calm] =
        robust(&mut planner(), &cluster(), &[calm], Measure::Worst).unwrap().measures();
    assert!((this / calm - 1.0).abs() < 1e-9);
}

#[test]
fn members_stand_as_the_fastest_calm_plan_wants_them() {
    // Nodes on a line with thick links between neighbours, the even ones before the odd ones.
    let place = |member: usize| member / 2 + member % 2 * 2;
    let rate = |from: usize, to: usize| match place(from).abs_diff(place(to)) {
        1 => 400.0,
        _ => 20.0,
    };
    let row = |from| (0..4).map(|to| rate(from, to) * 1e9 / 8.0).collect();
    let mut cluster = cluster();
    let level = &mut cluster.levels[1];
    let latency_s = vec![vec![level.latency_s; 4]; 4];
    let bytes_per_s = (0..4).map(row).collect();
    level.links = Some(Links { latency_s, bytes_per_s, order: (0..4).collect() });
    level.bytes_per_s = 20.0 * 1e9 / 8.0;
    let planner = || made::planner(made::gpt(6, 1024, 512), 32, Settings::default());
    let (arranged, found) = planner().placed(&cluster).unwrap();
    let made =
        robust(&mut planner(), &cluster, &Scenario::usual(&cluster), Measure::Worst).unwrap();
    assert_eq!(made.cluster, arranged);
    assert!(!made.cluster.order().is_empty());
    let (_, _, [_, calm]) = made.rows[0];
    assert!((calm / found.best.seconds - 1.0).abs() < 1e-9, "{calm} {}", found.best.seconds);
    let [this, _] = made.measures();
    assert!(made.bound.1 <= this, "{:?} {this}", made.bound);
}

#[test]
fn the_bound_names_its_case() {
    let slow = "[[scenario]]\nname = \"straggler\"\nslower = 1.5\n";
    assert_eq!(planned(slow, Measure::Worst).bound.0, "calm");
    let thin = "[[scenario]]\nname = \"thin\"\nbandwidth = 0.0001\n";
    let made = planned(&format!("{slow}{thin}"), Measure::Worst);
    assert_eq!(made.bound.0, "thin");
    let text = robust_report(&made);
    assert!(text.ends_with(": no plan takes less in the case 'thin'\n"), "{text}");
}

#[test]
fn thinner_links_make_another_plan() {
    let text = "[[scenario]]\nname = \"thin\"\nbandwidth = 0.02\nlevel = \"pod\"\n";
    let made = planned(text, Measure::Worst);
    let (_, _, [this, calm]) = made.rows[1];
    assert!(this < calm, "{this} {calm}");
}

#[test]
fn what_is_no_scenario_is_refused() {
    for (text, expected) in [
        ("[[scenario]]\nname = \"a\"\nbandwidth = 0\n", "scenario 'a': bandwidth is 0, expected"),
        ("[[scenario]]\nname = \"a\"\nslower = 0.5\n", "scenario 'a': slower is 0.5, expected 1"),
        ("[[scenario]]\nname = \"a\"\nlost = 4\n", "scenario 'a': lost is 4, expected less than 4"),
        (
            "[[scenario]]\nname = \"a\"\nlevel = \"rack\"\n",
            "scenario 'a': no level is called 'rack', expected one of node, pod",
        ),
        (
            "[[scenario]]\nname = \"a\"\nslower = 2\nprobability = 0.7\n[[scenario]]\nname = \"b\"\nlost = 1\nprobability = 0.5\n",
            "the probabilities of all scenarios are 1.2 together, expected at most 1",
        ),
        ("[[scenario]]\nname = \"a\"\nwidth = 2\n", "line "),
        (
            "[[scenario]]\nname = \"a\"\nprobability = 0.2\nlevel = \"pod\"\n",
            "scenario 'a' changes nothing, expected bandwidth below 1, slower above 1, or lost",
        ),
    ] {
        let error = Scenario::parse(text, &cluster()).unwrap_err().to_string();
        assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_tail_is_the_mean_of_the_worst() {
    let rows = [(0.7, 1.0), (0.1, 3.0), (0.1, 5.0), (0.1, 2.0)];
    for (measure, expected) in [
        (Measure::Worst, 5.0),
        (Measure::Tail(0.1), 5.0),
        (Measure::Tail(0.2), 4.0),
        (Measure::Tail(1.0), 1.7),
    ] {
        assert!((measure.of(&rows) - expected).abs() < 1e-12, "{measure:?}");
    }
}

#[test]
fn of_one_level_a_device_is_lost() {
    let cluster = made::cluster(1, 4, 100.0, 80.0);
    let one = Cluster { levels: cluster.levels[..1].to_vec(), ..cluster };
    let cases = Scenario::usual(&one);
    let made = robust(&mut planner(), &one, &cases, Measure::Worst).unwrap();
    let names: Vec<&str> = made.rows.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["calm", "half bandwidth", "one device +20 %", "one device lost"]);
    let calm_s = made.rows[0].2[0];
    made.rows.iter().for_each(|(name, _, [seconds, _])| {
        assert!(seconds.is_finite() && *seconds >= calm_s * (1.0 - 1e-9), "{name}: {seconds}");
    });
    let alone = Cluster { levels: vec![one.levels[0].resized(1)], ..one.clone() };
    assert_eq!(Scenario::usual(&alone).len(), 2);
    let text = "[[scenario]]\nname = \"gone\"\nlost = 4\n";
    let error = Scenario::parse(text, &one).unwrap_err().to_string();
    assert_eq!(error, "scenario 'gone': lost is 4, expected less than 4");
}

#[test]
fn a_plan_from_another_network_is_timed_in_the_calm_one() {
    let thin = "[[scenario]]\nname = \"thin\"\nbandwidth = 0.05\n";
    let made = planned(thin, Measure::Worst);
    let played_s = simulated_s(&made.found.best, Settings::default().overlap).unwrap();
    assert!((played_s / made.found.best.seconds - 1.0).abs() < 1e-9, "{played_s}");
}
