//! Loops in vectors of 16 lanes, written once and compiled for every instruction set.
//!
//! Whole vectors or blocks go through [`Lanes`]; the elements that are left over at the end of a
//! slice go through the scalar loops. Lengths are asserted here again, so that the safe functions of
//! `dispatch` stay within their slices whatever they are given.
//!
//! Every function here is unsafe for two reasons, and every caller answers for both: the machine
//! must have the instructions of `L`, and pointers must be good for as many elements as are read or
//! written. Pointers need no alignment.
#![allow(unsafe_op_in_unsafe_fn, reason = "every function here is unsafe for the same two reasons")]

mod avx2;
mod avx512;
mod casts;
mod codes;
mod collect;
mod group;
mod lanes;
mod meanings;
mod rans;
mod source;

pub(super) use avx2::Avx2;
pub(super) use avx512::Avx512;
pub(super) use casts::{cast_decode, cast_encode};
pub(super) use codes::{code_decode, code_encode};
pub(super) use collect::collect;
pub(super) use group::random;
pub(crate) use lanes::{CodeLanes, FormatLanes};
pub(super) use rans::{rans_decode, rans_encode};
