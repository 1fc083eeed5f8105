//! Codecs in files: how they are named, and what of a name is refused.

use tempfile::TempDir;
use thinwire_codec::language::{Text, compile, fingerprint};
use thinwire_codec::{Choice, Kind};

/// A folder that is gone when the test is.
struct Folder(TempDir);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(TempDir::with_prefix(format!("thinwire-language-{name}-")).unwrap())
    }

    fn write(&self, name: &str, source: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, source).unwrap();
        path.display().to_string()
    }
}

const TBQ: &str = include_str!("../../../examples/codecs/tbq.codec");

#[test]
fn a_file_is_named_by_its_stem_its_text_and_its_parameters() {
    let folder = Folder::new("name");
    let path = folder.write("mine.codec", TBQ);
    let print = fingerprint(TBQ);
    let name = format!("{path}:tau=0.25");
    let choice = Choice::parse(&name).unwrap().to_string();
    assert_eq!(choice, format!("mine#{print}:tau=0.25"));
    let elsewhere = folder.write("else/where/mine.codec", TBQ);
    assert_eq!(Choice::parse(&format!("{elsewhere}:tau=0.25")).unwrap().to_string(), choice);

    let pinned = format!("{path}#{print}:tau=0.25");
    assert_eq!(Choice::parse(&pinned).unwrap().to_string(), choice);
    folder.write("mine.codec", &TBQ.replace("block 128", "block 64"));
    let error = Choice::parse(&pinned).unwrap_err();
    assert_eq!(error.kind(), Kind::File);
    assert!(error.to_string().contains("has changed: its fingerprint is"), "{error}");
    assert_ne!(Choice::parse(&name).unwrap().to_string(), choice);
}

#[test]
fn parameters_that_do_not_fit_are_refused() {
    let folder = Folder::new("parameters");
    let path = folder.write("mine.codec", TBQ);
    for (parameters, expected) in [
        ("tau", "parameter 'tau', expected NAME=NUMBER"),
        ("tau=x", "parameter 'tau=x', expected NAME=NUMBER"),
        ("rho=1", "unknown parameter 'rho', expected one of tau"),
        ("tau=0", "tau = 0, expected"),
        ("tau=1e-300", "tau = 1e-300, expected"),
        ("tau=0.5,tau=0.7", "parameter tau is given twice, as 0.5 and 0.7"),
    ] {
        let error = Choice::parse(&format!("{path}:{parameters}")).unwrap_err();
        assert_eq!(error.kind(), Kind::Parameter, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = Choice::parse(&format!("{path}gone.codec")).unwrap_err();
    assert_eq!(error.kind(), Kind::File);
    assert!(error.to_string().starts_with("cannot read codec "), "{error}");
}

#[test]
fn any_file_name_will_do() {
    let folder = Folder::new("names");
    for name in
        ["a#b.codec", "a+b.codec", "a:b.codec", "a b.codec", "x.codec.codec", "d.codec/y.codec"]
    {
        let path = folder.write(name, TBQ);
        for name in [path.clone(), format!("{path}:tau=0.25")] {
            Choice::parse(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn a_mark_of_the_byte_order_says_nothing() {
    let folder = Folder::new("mark");
    let plain = Choice::parse(&folder.write("mine.codec", TBQ)).unwrap().to_string();
    let marked = folder.write("marked/mine.codec", &format!("\u{feff}{TBQ}"));
    assert_eq!(Choice::parse(&marked).unwrap().to_string(), plain);
}

#[test]
fn planes_of_a_block_that_is_no_multiple_of_128_are_filled_up() {
    for (block, length, padding) in [(128, 20, 0), (64, 20, 8), (8, 12, 7), (200, 36, 7)] {
        let source = format!(
            "codec c\nblock {block}\nfeedback\nencode x:\n    emit f32 mean(x)\n    emit u1 x < 0\n\
             decode:\n    scale = take f32\n    yield select(take u1, -scale, scale)\n"
        );
        let text = Text { path: "c.codec", source: &source, parameters: &[] };
        let Choice::Bytes(codec) = compile(&text).unwrap() else { panic!("it has bytes") };
        assert_eq!((codec.encoded_len(block), codec.padding(block)), (length, padding));
        assert_eq!(codec.padding(7 * block), 7 * padding);
    }
}
