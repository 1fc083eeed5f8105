//! Laws of every codec, checked from nothing but its declarations.
//!
//! [`codec_laws!`](crate::codec_laws) makes tests of all laws for a codec of any crate; each law is
//! also a function here, which panics if the law is broken. A codec declares in [`Claims`](crate::Claims)
//! or [`Bound`](crate::Bound), never here, which laws it does not keep. Numbers that look random follow
//! from a fixed seed.
//!
//! The codec of this example sends nothing: feedback keeps all values, and the codec does not claim
//! that it will ever send them.
//!
//! ```
//! use thinwire_codec::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, kernel, laws};
//! use thinwire_wire::random::Key;
//!
//! #[derive(Debug)]
//! struct Silence;
//!
//! impl std::fmt::Display for Silence {
//!     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
//!         f.write_str("silence")
//!     }
//! }
//!
//! impl Codec for Silence {
//!     fn exchange(&self) -> Exchange {
//!         Exchange::Gather
//!     }
//!     fn needs_feedback(&self) -> bool {
//!         true
//!     }
//!     fn bound(&self, _elements: usize) -> Bound {
//!         Bound::Contraction(0.0)
//!     }
//!     fn claims(&self) -> Claims {
//!         Claims { nearest: false, ..Claims::ALL }
//!     }
//!     fn encoded_len(&self, _elements: usize) -> usize {
//!         0
//!     }
//!     fn encode(&self, mut input: Input<'_>, _key: Key, _output: &mut [u8]) -> Finite {
//!         if let Input::Feedback { values, residual } = &mut input {
//!             kernel::add(values, residual);
//!         }
//!         Finite::from(kernel::is_finite(input.values()))
//!     }
//!     fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
//!         Error::check_length(self, encoded, 0, values.len())?;
//!         if write == Write::Set {
//!             values.fill(0.0);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! thinwire_codec::codec_laws!(Silence);
//!
//! laws::residual::what_is_sent_and_what_is_left_is_what_there_was(&Silence);
//! ```

pub mod bounds;
pub mod bytes;
mod inputs;
pub mod linear;
pub mod random;
pub mod residual;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::{Choice, Codec};

/// Function that panics where its law is broken.
pub type Law = fn(&dyn Codec);

/// Every law with its name.
pub const ALL: [(&str, Law); 18] = [
    ("the length is exact", bytes::the_length_is_exact_and_every_byte_is_written),
    ("other lengths are refused", bytes::other_lengths_are_refused_with_both_numbers),
    ("the same input gives the same bytes", bytes::the_same_input_gives_the_same_bytes),
    ("any bytes decode or are refused", bytes::any_bytes_decode_or_are_refused),
    ("encoding is idempotent", bytes::encoding_what_was_decoded_changes_nothing),
    ("what is not finite is reported", bytes::any_numbers_decode_to_finite_ones_or_are_reported),
    ("NaN is noticed wherever it is", bytes::one_number_that_is_none_is_noticed_wherever_it_is),
    ("sent and left are what there was", residual::what_is_sent_and_what_is_left_is_what_there_was),
    ("over many steps nothing is lost", residual::over_many_steps_nothing_is_lost),
    ("nothing in, nothing out", residual::nothing_in_nothing_out),
    (
        "the residual is as short as claimed",
        bounds::the_residual_is_as_much_shorter_as_the_codec_declares,
    ),
    (
        "the error varies as little as claimed",
        bounds::the_mean_error_is_as_small_as_the_codec_declares,
    ),
    ("rounding is to the nearest", bounds::rounding_is_to_the_nearest),
    ("random rounding is right in the mean", random::random_rounding_is_right_in_the_mean),
    ("ranks and steps round independently", random::ranks_steps_and_tensors_round_independently),
    ("elements round independently", random::elements_round_independently),
    ("blocks are encoded alone", linear::ranges_that_begin_at_a_block_are_encoded_alone),
    ("sums are linear", linear::summable_codecs_are_linear_but_for_rounding),
];

/// A law that a codec breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the law.
    pub law: &'static str,
    /// Message with the numbers that show the violation.
    pub why: String,
}

/// Returns the laws that a codec breaks.
pub fn broken(codec: &dyn Codec) -> Vec<Broken> {
    // The hook belongs to the process: without it, a broken law would print a panic.
    static HOOK: Mutex<()> = Mutex::new(());
    let _alone = HOOK.lock();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let broken = ALL.iter().filter_map(|(name, law)| try_law(name, *law, codec)).collect();
    std::panic::set_hook(hook);
    broken
}

/// Refuses a codec from a user's file that breaks a law; tests have checked the built-in codecs.
///
/// # Errors
/// If the codec breaks a law: one line about the first one.
pub fn check_file(choice: &Choice) -> Result<(), String> {
    let Choice::Bytes(codec) = choice else { return Ok(()) };
    // Only names of files have a fingerprint.
    if !codec.to_string().contains('#') {
        return Ok(());
    }
    let Some(Broken { law, why }) = broken(codec.as_ref()).into_iter().next() else {
        return Ok(());
    };
    let why = why.lines().next().unwrap_or_default();
    Err(format!(
        "codec {codec} breaks a law: {law}: {why} (hint: thinwire codec check shows all laws; \
         unchecked trains with the codec all the same)"
    ))
}

/// Runs a law, which panics if it is broken, and returns the message of the panic.
fn try_law(name: &'static str, law: Law, codec: &dyn Codec) -> Option<Broken> {
    let panic = catch_unwind(AssertUnwindSafe(|| law(codec))).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("broken");
    let why = text.strip_prefix(&format!("{codec}: ")).unwrap_or(text).to_owned();
    Some(Broken { law: name, why })
}

/// Defines a test per law: `codec_laws!(codec)`, or `codec_laws!(each codecs)` with pointers to several.
#[macro_export]
macro_rules! codec_laws {
    (each $codecs:expr) => {
        $crate::codec_laws! { @tests $codecs;
            bytes::the_length_is_exact_and_every_byte_is_written,
            bytes::other_lengths_are_refused_with_both_numbers,
            bytes::the_same_input_gives_the_same_bytes,
            bytes::any_bytes_decode_or_are_refused,
            bytes::encoding_what_was_decoded_changes_nothing,
            bytes::any_numbers_decode_to_finite_ones_or_are_reported,
            bytes::one_number_that_is_none_is_noticed_wherever_it_is,
            residual::what_is_sent_and_what_is_left_is_what_there_was,
            residual::over_many_steps_nothing_is_lost,
            residual::nothing_in_nothing_out,
            bounds::the_residual_is_as_much_shorter_as_the_codec_declares,
            bounds::the_mean_error_is_as_small_as_the_codec_declares,
            bounds::rounding_is_to_the_nearest,
            random::random_rounding_is_right_in_the_mean,
            random::ranks_steps_and_tensors_round_independently,
            random::elements_round_independently,
            linear::ranges_that_begin_at_a_block_are_encoded_alone,
            linear::summable_codecs_are_linear_but_for_rounding,
        }
    };
    (@tests $codecs:expr; $($file:ident::$law:ident,)*) => {
        $(
            #[test]
            fn $law() {
                for codec in $codecs {
                    $crate::laws::$file::$law(&*codec);
                }
            }
        )*
    };
    ($codec:expr) => {
        $crate::codec_laws! { each [::std::boxed::Box::new($codec)] }
    };
}
