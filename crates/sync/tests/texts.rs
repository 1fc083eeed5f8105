//! Codecs as text: in files, on ranks that have them in different places, and by the names of parameters.

mod made;

use std::path::PathBuf;

use made::{averages, give, options, parameters, spawn};
use tempfile::TempDir;
use thinwire_sync::{Error, Options, Outcome, Synchronizer};
use thinwire_testkit::{self as testkit, Network};

const TEXT: &str = include_str!("../../../examples/codecs/onebit.codec");

/// A folder with a file per rank, in a folder of its own; gone with the test.
struct Folder(TempDir);

impl Folder {
    fn new(name: &str, texts: [&str; 2]) -> Folder {
        let folder = Folder(TempDir::with_prefix(format!("thinwire-texts-{name}-")).unwrap());
        for (rank, text) in texts.into_iter().enumerate() {
            let file = folder.file(rank);
            std::fs::create_dir_all(PathBuf::from(&file).parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        folder
    }

    fn file(&self, rank: usize) -> String {
        self.0.path().join(format!("of-{rank}/mine+own.codec")).display().to_string()
    }
}

/// Two steps on two ranks, each with its own file; the codecs of the last plan.
fn trained(folder: &Folder, prefix: &str, limit: &str) -> Vec<Result<Vec<String>, Error>> {
    let limit = Some(limit.parse().unwrap());
    testkit::spawn_limited(Network::Tcp, 2, limit, |link| {
        let file = folder.file(link.world().rank().index());
        let options: Options = options(&format!("{prefix}{file}"));
        let mut sync = Synchronizer::start(link, parameters(), options)?;
        (0..3).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
        Ok(sync.plan().assignments.iter().map(|one| one.codec.clone()).collect())
    })
}

#[test]
fn ranks_agree_on_a_text_wherever_it_lies() {
    let folder = Folder::new("alike", [TEXT; 2]);
    for prefix in ["", "auto:"] {
        for codecs in trained(&folder, prefix, "10mbit") {
            let codecs = codecs.unwrap();
            assert!(codecs.iter().any(|codec| codec.starts_with("mine+own#")), "{codecs:?}");
        }
    }
}

#[test]
fn texts_that_differ_are_refused() {
    let other = TEXT.replace("digits(mean(abs(x)), 17)", "digits(mean(abs(x)), 16)");
    let folder = Folder::new("differ", [TEXT, &other]);
    for (rank, refused) in trained(&folder, "", "1gbit").into_iter().enumerate() {
        let error = refused.unwrap_err().to_string();
        assert!(error.starts_with("ranks disagree on codec: this rank has mine+own#"), "{error}");
        assert!(error.contains(&format!(", rank {} has mine+own#", 1 - rank)), "{error}");
    }
}

#[test]
fn one_rule_for_all_names_is_its_codec() {
    let steps = |codec: &str| {
        spawn(2, codec, |mut sync| {
            (0..3).for_each(|step| assert_eq!(give(&mut sync, step, false), Outcome::Averaged));
            (averages(&sync), sync.state().tensors, sync.plan().assignments.clone())
        })
    };
    for codec in ["int4", "powersgd:2", "none"] {
        assert_eq!(steps(codec), steps(&format!("head.*={codec},*={codec}")), "{codec}");
    }
}

#[test]
fn buckets_have_parameters_of_one_codec() {
    let found = spawn(2, "head.*=powersgd:2,*.weight=int4,*=int8", |sync| {
        let codecs = sync.plan().assignments.iter().map(|assignment| assignment.codec.clone());
        let names = |bucket: Vec<usize>| {
            bucket.into_iter().map(|at| sync.parameters()[at].name.clone()).collect::<Vec<_>>()
        };
        sync.buckets().map(names).zip(codecs).collect::<Vec<_>>()
    });
    for (names, codec) in &found[0] {
        for name in names {
            let expected = match name.as_str() {
                "head.weight" => "powersgd:2",
                "hidden.weight" | "thin.weight" | "input.weight" => "int4",
                // Vectors are never compressed.
                _ => "none",
            };
            assert_eq!(codec, expected, "{name}");
        }
    }
}

#[test]
fn a_parameter_that_no_pattern_matches_is_named() {
    let start = |link| {
        let started = Synchronizer::start(link, parameters(), options("*.weight=int8"));
        started.err().unwrap().to_string()
    };
    for said in testkit::spawn(Network::Mem, 2, start) {
        assert_eq!(
            said,
            "codec *.weight=int8 has no pattern for head.bias, expected one for every parameter (hint: *=none at \
             the end)"
        );
    }
}
