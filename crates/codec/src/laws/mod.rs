//! Laws of every codec, checked from nothing but its declarations.
//!
//! [`codec_laws!`](crate::codec_laws) makes tests of all laws for a codec of any crate; each law is
//! also a function here, which panics where the law is broken. A codec gives up a law by saying so in
//! [`Claims`](crate::Claims) or [`Bound`](crate::Bound), never here. Numbers that look random follow
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
//!         Finite::when(kernel::is_finite(input.values()))
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
//! laws::what_is_sent_and_what_is_left_is_what_there_was(&Silence);
//! ```

mod bounds;
mod bytes;
mod inputs;
mod linear;
mod random;
mod residual;
mod table;
mod trial;

pub use bounds::{
    rounding_is_to_the_nearest, the_mean_error_is_as_small_as_the_codec_declares,
    the_residual_is_as_much_shorter_as_the_codec_declares,
};
pub use bytes::{
    any_bytes_decode_or_are_refused, any_numbers_decode_to_finite_ones_or_are_reported,
    encoding_what_was_decoded_changes_nothing, one_number_that_is_none_is_noticed_wherever_it_is,
    other_lengths_are_refused_with_both_numbers, the_length_is_exact_and_every_byte_is_written,
    the_same_input_gives_the_same_bytes,
};
pub use linear::{
    ranges_that_begin_at_a_block_are_encoded_alone, summable_codecs_are_linear_but_for_rounding,
};
pub use random::{
    elements_round_independently, random_rounding_is_right_in_the_mean,
    ranks_steps_and_tensors_round_independently,
};
pub use residual::{
    nothing_in_nothing_out, over_many_steps_nothing_is_lost,
    what_is_sent_and_what_is_left_is_what_there_was,
};

pub use table::{ALL, Law};

/// Defines a test per law: `codec_laws!(codec)`, or `codec_laws!(each codecs)` with pointers to several.
#[macro_export]
macro_rules! codec_laws {
    (each $codecs:expr) => {
        $crate::codec_laws! { @tests $codecs;
            the_length_is_exact_and_every_byte_is_written,
            other_lengths_are_refused_with_both_numbers,
            the_same_input_gives_the_same_bytes,
            any_bytes_decode_or_are_refused,
            encoding_what_was_decoded_changes_nothing,
            any_numbers_decode_to_finite_ones_or_are_reported,
            one_number_that_is_none_is_noticed_wherever_it_is,
            what_is_sent_and_what_is_left_is_what_there_was,
            over_many_steps_nothing_is_lost,
            nothing_in_nothing_out,
            the_residual_is_as_much_shorter_as_the_codec_declares,
            the_mean_error_is_as_small_as_the_codec_declares,
            rounding_is_to_the_nearest,
            random_rounding_is_right_in_the_mean,
            ranks_steps_and_tensors_round_independently,
            elements_round_independently,
            ranges_that_begin_at_a_block_are_encoded_alone,
            summable_codecs_are_linear_but_for_rounding,
        }
    };
    (@tests $codecs:expr; $($law:ident,)*) => {
        $(
            #[test]
            fn $law() {
                for codec in $codecs {
                    $crate::laws::$law(&*codec);
                }
            }
        )*
    };
    ($codec:expr) => {
        $crate::codec_laws! { each [::std::boxed::Box::new($codec)] }
    };
}
