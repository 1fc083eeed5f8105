//! Any text is the name of a codec, which writes itself back, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thinwire_codec::Choice;

fuzz_target!(|name: &str| {
    if let Ok(choice) = Choice::parse(name) {
        let name = choice.to_string();
        let again = Choice::parse(&name).expect("a codec's own name parses");
        assert_eq!(again.to_string(), name);
    }
});
