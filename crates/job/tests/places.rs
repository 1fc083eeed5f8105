//! Every launcher's variables, and what is given beside them, as a table of places.

use std::collections::BTreeMap;

use thinwire_job::{Error, Form, Host, Kind, Overrides, Place, Source, find, local_ranks};
use thinwire_wire::Hint;

fn found(variables: &str) -> Result<Option<Place>, Error> {
    with(&Overrides::default(), variables)
}

fn with(overrides: &Overrides, variables: &str) -> Result<Option<Place>, Error> {
    find(overrides, &lookup(variables))
}

/// An environment of `NAME=value` and spaces.
fn lookup(variables: &str) -> impl Fn(&str) -> Option<String> {
    let map: BTreeMap<String, String> = variables
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    move |name| map.get(name).filter(|value| !value.is_empty()).cloned()
}

#[test]
fn every_launcher_is_understood() {
    let table = [
        ("", None),
        (
            "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=500",
            Some((1, 4, 2, "n0:500", Host::RankZero, Source::Torchrun)),
        ),
        (
            "RANK=1 WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=500 TORCHELASTIC_USE_AGENT_STORE=True",
            Some((1, 4, 1, "n0:501", Host::RankZero, Source::Torchrun)),
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=5 THINWIRE_COORDINATOR=n1:7",
            Some((0, 2, 1, "n1:7", Host::RankZero, Source::Torchrun)),
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 THINWIRE_STORE=launcher THINWIRE_COORDINATOR=127.0.0.1:7",
            Some((0, 2, 2, "127.0.0.1:7", Host::Launcher, Source::Thinwire)),
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=fe80::1 MASTER_PORT=5",
            Some((0, 2, 1, "[fe80::1]:5", Host::RankZero, Source::Torchrun)),
        ),
        (
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3",
            Some((2, 3, 3, "127.0.0.1:29417", Host::RankZero, Source::OpenMpi)),
        ),
        (
            "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=1 MASTER_ADDR=a",
            Some((0, 2, 1, "a:29417", Host::RankZero, Source::Mpich)),
        ),
        (
            "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=9 SLURM_STEP_ID=0 SLURM_NODEID=1 \
             SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_STEP_NODELIST=gpu[07-09,12] SLURM_JOB_ID=123456",
            Some((3, 7, 2, "gpu07:28484", Host::RankZero, Source::Slurm)),
        ),
        // Under srun --mpi=pmi2, the port is that of the step as well.
        (
            "PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=2 \
             SLURM_JOB_ID=77 MASTER_ADDR=a",
            Some((1, 2, 1, "a:22439", Host::RankZero, Source::Mpich)),
        ),
        // A batch script, and an interactive shell: nobody's ranks.
        ("SLURM_PROCID=0 SLURM_NTASKS=4", None),
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0", None),
        ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=4294967290", None),
        ("RANK= WORLD_SIZE=", None),
    ];
    for (variables, expected) in table {
        let expected =
            expected.map(|(rank, world, local_world, coordinator, host, source)| Place {
                rank,
                world,
                local_rank: 0,
                local_world,
                coordinator: coordinator.to_owned(),
                host,
                source,
                job: None,
            });
        let found = found(variables).expect(variables).map(|place| Place { job: None, ..place });
        assert_eq!(found, expected, "{variables}");
    }
}

#[test]
fn tasks_of_slurm_under_pmi2_know_who_shares_their_node() {
    let task = "PMI_RANK=5 PMI_SIZE=6 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_ID=2 \
                SLURM_JOB_ID=77 SLURM_NODEID=1 SLURM_LOCALID=2 SLURM_STEP_TASKS_PER_NODE=3(x2) \
                MASTER_ADDR=a";
    let place = found(task).unwrap().unwrap();
    assert_eq!((place.local_rank, place.local_world, place.source), (2, 3, Source::Mpich));
    // A launcher inside a step has other ranks than the step's tasks.
    let place = found(&format!("{task} PMI_SIZE=8")).unwrap().unwrap();
    assert_eq!((place.local_rank, place.local_world), (0, 1));
}

#[test]
fn a_job_has_the_name_that_its_launcher_gives_it() {
    let step =
        "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=4 SLURM_JOB_ID=77 SLURM_NODELIST=a";
    let torchrun = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=5";
    let named = "Slurm step 77.4";
    let table = [
        (step.to_owned(), Some(named)),
        (torchrun.to_owned(), None),
        (format!("{torchrun} {step}"), Some(named)),
        // A launcher inside a step: its ranks are not the tasks of the step.
        (format!("{torchrun} {step} RANK=0"), None),
        (format!("{torchrun} {step} WORLD_SIZE=3"), None),
        (
            format!("{torchrun} {step} TORCHELASTIC_RUN_ID=r5"),
            Some("job r5 of RANK and WORLD_SIZE"),
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=9 MASTER_ADDR=a"
                .to_owned(),
            Some("job 9 of mpirun (Open MPI)"),
        ),
    ];
    for (variables, expected) in table {
        let place = found(&variables).unwrap().unwrap();
        assert_eq!(place.job.as_deref(), expected, "{variables}");
    }
    let overrides = Overrides { rank: Some(1), world: Some(2), ..Overrides::default() };
    let overrides = Overrides { coordinator: Some("h:9".to_owned()), ..overrides };
    assert_eq!(with(&overrides, step).unwrap().unwrap().job.as_deref(), Some(named));

    let error = found(&step.replace("PROCID=1", "PROCID=2")).unwrap_err();
    let hint = error.hint().unwrap();
    assert!(hint.contains("SLURM_PROCID") && hint.contains("rank 2 of 2"), "{hint}");
}

/// What msrun 2.10 sets for worker 1 of 2 on one host.
const WORKER: &str = "DEVICE_ID=1 MS_NODE_ID=1 MS_ROLE=MS_WORKER MS_SCHED_HOST=127.0.0.1 \
                      MS_SCHED_PORT=8118 MS_TOPO_TIMEOUT=600 MS_WORKER_NUM=2 RANK_ID=1 RANK_SIZE=2";

#[test]
fn a_worker_of_msrun_is_a_rank() {
    let place = found(WORKER).unwrap().unwrap();
    let expected = Place {
        rank: 1,
        world: 2,
        local_rank: 1,
        local_world: 2,
        coordinator: "127.0.0.1:28118".to_owned(),
        host: Host::RankZero,
        source: Source::Msrun,
        job: None,
    };
    assert_eq!(place, expected);

    // On several hosts it does not say how many workers run on each.
    let several = format!("{WORKER} MS_SCHED_HOST=10.0.0.1 MS_SCHED_PORT=12345 MASTER_ADDR=n9");
    let place = found(&several).unwrap().unwrap();
    assert_eq!((place.local_world, place.coordinator.as_str()), (1, "10.0.0.1:22345"));
}

#[test]
fn msrun_stands_behind_torchrun_and_before_what_may_have_started_it() {
    let place = found(&format!("{WORKER} RANK=0 WORLD_SIZE=3 MASTER_ADDR=n0")).unwrap().unwrap();
    assert_eq!((place.rank, place.world, place.source), (0, 3, Source::Torchrun));
    let srun = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=9 SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=5";
    let place = found(&format!("{WORKER} {srun}")).unwrap().unwrap();
    assert_eq!((place.rank, place.world, place.source), (1, 2, Source::Msrun));
    let place = found(&format!("{WORKER} THINWIRE_COORDINATOR=n1:7")).unwrap().unwrap();
    assert_eq!((place.coordinator.as_str(), place.source), ("n1:7", Source::Msrun));
}

#[test]
fn who_has_no_rank_of_msrun_gets_none() {
    // The scheduler runs the same program, with rank 0 in its environment.
    let scheduler = "MS_ROLE=MS_SCHED MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=8118 MS_WORKER_NUM=2 \
                     RANK_ID=0 RANK_SIZE=2";
    let error = found(scheduler).unwrap_err();
    assert_eq!(error.kind, Kind::NoRank);
    assert_eq!(error.to_string(), "this process is no rank: MS_ROLE is MS_SCHED");
    assert!(error.hint().is_some());

    // Several hosts without --node_rank: RANK_ID is the scheduler's.
    let unnumbered = WORKER.replace("MS_NODE_ID=1", "").replace("RANK_ID=1", "RANK_ID=0");
    let error = found(&unnumbered).unwrap_err();
    assert_eq!(error.kind, Kind::Invalid);
    assert_eq!(error.to_string(), "joining msrun: MS_NODE_ID is not set");

    // A dry run has no scheduler, and no roles.
    assert_eq!(found("MS_NODE_ID=1 MS_WORKER_NUM=2 RANK_ID=1 RANK_SIZE=2").unwrap(), None);
}

#[test]
fn what_is_missing_or_impossible_is_named() {
    let table = [
        ("RANK=1", "RANK is 1, but WORLD_SIZE is not set"),
        ("RANK=one WORLD_SIZE=2", "RANK is 'one', expected a whole number"),
        (
            "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a",
            "taking the place that RANK and WORLD_SIZE gives: rank 2 is not in a world of 2, expected 0..=1",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
            "MASTER_PORT is 65535, expected at most 65534",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=4294967295 TORCHELASTIC_USE_AGENT_STORE=True",
            "MASTER_PORT is 4294967295, expected at most 65534",
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "joining mpirun (Open MPI): the host of rank 0 is not known: MASTER_ADDR is not set",
        ),
        ("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_ID=0", "SLURM_STEP_NODELIST is not set"),
        ("RANK=0 WORLD_SIZE=2 THINWIRE_COORDINATOR=here", "address 'here', expected host:port"),
    ];
    for (variables, expected) in table {
        assert_eq!(found(variables).unwrap_err().to_string(), expected);
    }
}

/// `auto` counts the cores that a rank has from this.
#[test]
fn how_many_ranks_share_the_machine_is_what_the_launcher_says_or_all_on_loopback() {
    let table = [
        ("RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1", 4),
        ("RANK=1 WORLD_SIZE=8 MASTER_ADDR=127.0.0.1", 8),
        ("RANK=1 WORLD_SIZE=8 MASTER_ADDR=n0", 1),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=a",
            2,
        ),
        ("PMI_RANK=1 PMI_SIZE=8 MPI_LOCALNRANKS=3 MASTER_ADDR=a", 3),
        ("PMI_RANK=1 PMI_SIZE=8 MASTER_ADDR=localhost", 8),
        (
            "SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_ID=0 SLURM_NODEID=1 \
             SLURM_STEP_TASKS_PER_NODE=4,1 SLURM_STEP_NODELIST=n[1-2]",
            1,
        ),
        ("MS_NODE_ID=1 MS_ROLE=MS_WORKER MS_SCHED_HOST=127.0.0.1 MS_WORKER_NUM=6", 6),
        ("MS_NODE_ID=1 MS_ROLE=MS_WORKER MS_SCHED_HOST=10.0.0.1 MS_WORKER_NUM=6", 1),
    ];
    for (variables, expected) in table {
        assert_eq!(found(variables).unwrap().unwrap().local_world, expected, "{variables}");
        assert_eq!(local_ranks(&lookup(variables)), expected, "{variables}");
    }
    for variables in ["", "RANK=1", "RANK=one WORLD_SIZE=8"] {
        assert_eq!(local_ranks(&lookup(variables)), 1, "{variables}");
    }
    for (coordinator, expected) in [("127.0.0.1:9", 3), ("[::1]:9", 3), ("10.0.0.1:9", 1)] {
        let coordinator = Some(coordinator.to_owned());
        let overrides =
            Overrides { rank: Some(0), world: Some(3), coordinator, ..Overrides::default() };
        assert_eq!(with(&overrides, "").unwrap().unwrap().local_world, expected);
    }
}

#[test]
fn what_is_given_comes_before_the_environment() {
    let torchrun = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=500";
    let coordinator = Some("h:9".to_owned());
    let overrides =
        Overrides { rank: Some(0), world: Some(2), coordinator, ..Overrides::default() };
    let place = with(&overrides, torchrun).unwrap().unwrap();
    assert_eq!((place.rank, place.world, place.coordinator.as_str()), (0, 2, "h:9"));
    assert_eq!((place.host, place.source), (Host::RankZero, Source::Overrides(Form::Arguments)));
    // The launcher still knows how many ranks share the machine.
    assert_eq!(place.local_world, 1);
    for (local, expected) in [("1", 1), ("2", 2), ("4", 2)] {
        let variables = format!("{torchrun} LOCAL_RANK=0 LOCAL_WORLD_SIZE={local}");
        assert_eq!(with(&overrides, &variables).unwrap().unwrap().local_world, expected, "{local}");
    }

    let overrides = Overrides { rank: None, world: None, ..overrides };
    let place = with(&overrides, torchrun).unwrap().unwrap();
    assert_eq!((place.rank, place.world, place.coordinator.as_str()), (1, 4, "h:9"));
    assert!(with(&overrides, "").is_err());
    assert!(with(&Overrides { rank: Some(0), ..Overrides::default() }, torchrun).is_err());

    let hosted = Overrides { host: Host::Launcher, ..overrides };
    assert_eq!(with(&hosted, torchrun).unwrap().unwrap().host, Host::Launcher);
}

#[test]
fn messages_name_what_was_given_as_it_was_written() {
    let said = |form, rank, world, coordinator: Option<&str>| {
        let coordinator = coordinator.map(str::to_owned);
        let overrides = Overrides { rank, world, coordinator, form, ..Overrides::default() };
        let error = with(&overrides, "").unwrap_err();
        (error.to_string(), error.hint().map(str::to_owned))
    };
    assert_eq!(said(Form::Flags, Some(1), None, None).0, "--rank 1 needs --world");
    assert_eq!(said(Form::Arguments, Some(1), None, None).0, "rank=1 needs world");
    assert_eq!(said(Form::Arguments, None, Some(3), None).0, "world=3 needs rank");
    let (message, hint) = said(Form::Flags, None, None, Some("h:9"));
    assert_eq!((message.as_str(), hint), ("--coordinator needs --rank and --world", None));
    let (message, hint) = said(Form::Arguments, Some(1), Some(2), None);
    assert_eq!(message, "rank=1 needs coordinator");
    let expected = r#"name a host and a port of rank 0: coordinator="10.0.0.1:29417""#;
    assert_eq!(hint.as_deref(), Some(expected));
}
