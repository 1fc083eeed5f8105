//! Table of all laws by name, for reports of the laws that a codec breaks.

use super::bounds::*;
use super::bytes::*;
use super::linear::*;
use super::random::*;
use super::residual::*;
use crate::Codec;

/// Function that panics where its law is broken.
pub type Law = fn(&dyn Codec);

/// Every law with its name.
pub const ALL: [(&str, Law); 18] = [
    ("the length is exact", the_length_is_exact_and_every_byte_is_written),
    ("other lengths are refused", other_lengths_are_refused_with_both_numbers),
    ("the same input gives the same bytes", the_same_input_gives_the_same_bytes),
    ("any bytes decode or are refused", any_bytes_decode_or_are_refused),
    ("encoding is idempotent", encoding_what_was_decoded_changes_nothing),
    ("what is not finite is reported", any_numbers_decode_to_finite_ones_or_are_reported),
    ("NaN is noticed wherever it is", one_number_that_is_none_is_noticed_wherever_it_is),
    ("sent and left are what there was", what_is_sent_and_what_is_left_is_what_there_was),
    ("over many steps nothing is lost", over_many_steps_nothing_is_lost),
    ("nothing in, nothing out", nothing_in_nothing_out),
    ("the residual is as short as claimed", the_residual_is_as_much_shorter_as_the_codec_declares),
    ("the error varies as little as claimed", the_mean_error_is_as_small_as_the_codec_declares),
    ("rounding is to the nearest", rounding_is_to_the_nearest),
    ("random rounding is right in the mean", random_rounding_is_right_in_the_mean),
    ("ranks and steps round independently", ranks_steps_and_tensors_round_independently),
    ("elements round independently", elements_round_independently),
    ("blocks are encoded alone", ranges_that_begin_at_a_block_are_encoded_alone),
    ("sums are linear", summable_codecs_are_linear_but_for_rounding),
];
