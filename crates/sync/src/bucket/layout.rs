//! The layout of buckets: the gradients that travel together.
//!
//! Parameters are taken in the order in which their gradients become ready. A bucket is closed when
//! it has reached its size, or the framework's own bucket ends; tensors that travel uncompressed
//! share buckets of their own, so that a codec never sees them, and so do those of one dtype. Law:
//! every parameter is in exactly one bucket, and the layout is a function of the parameters alone,
//! so it is the same on all ranks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use thinwire_codec::{Choice, Codec};
use thinwire_schedule::{Algorithm, Summation};
use thinwire_wire::{DType, Rank};

use crate::{Parameter, Policy, Target, Transport};

/// A set of parameters that is exchanged as one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The parameters in it and their elements in the bucket.
    pub(crate) members: Vec<(usize, Range<usize>)>,
    /// Elements in the bucket.
    pub(crate) elements: usize,
    /// It always travels uncompressed.
    pub(crate) exempt: bool,
    /// The dtype in which it travels when it is not compressed.
    pub(crate) dtype: DType,
    /// The ranks that have a share of it, by their numbers in the job; empty for all of the synchroniser.
    pub(crate) ranks: Arc<[Rank]>,
    /// Where its sum is needed.
    pub(crate) target: Target,
    /// The codec and the schedule that a plan gives it, whatever the policy.
    pub(crate) transport: Option<Transport>,
    /// The rule that gives its codec, where codecs are given by the names of parameters.
    pub(crate) rule: Option<usize>,
}

/// Facts that parameters of one bucket have in common: whether they are exempt, their rule, dtype, kind and ranks.
type Shared = (bool, Option<usize>, DType, u32, Arc<[Rank]>);

/// Whether vectors have buckets of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apart {
    /// They have, because they travel uncompressed.
    Vectors,
    /// Everything travels uncompressed.
    No,
}

/// Buckets of at least `bytes_max` bytes each, the last ones excepted, in order of readiness, and
/// for every parameter its bucket and its place in it.
pub(crate) fn layout(
    parameters: &[Parameter],
    bytes_max: usize,
    apart: Apart,
    policy: &Policy,
) -> (Vec<Bucket>, Vec<(usize, Range<usize>)>) {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: BTreeMap<Shared, Bucket> = BTreeMap::new();
    let mut framework_bucket = None;
    for (index, parameter) in parameters.iter().enumerate() {
        if framework_bucket.replace(parameter.bucket) != Some(parameter.bucket) {
            buckets.extend(std::mem::take(&mut open).into_values());
        }
        let rule = policy.rule(parameter.whole_name());
        if parameter.is_alone() {
            let exempt = parameter.transport.is_none() && parameter.is_exempt();
            buckets.push(Bucket { exempt, rule, ..Bucket::of_one(index, parameter) });
            continue;
        }
        let exempt = apart == Apart::No || parameter.is_exempt();
        // Gradients that travel uncompressed share buckets, whatever their rules.
        let rule = rule.filter(|_| !exempt);
        let Parameter { dtype, kind, ranks, .. } = parameter;
        let kind = (exempt, rule, *dtype, *kind, Arc::clone(ranks));
        let new = || Bucket { exempt, rule, ..Bucket::like(parameter) };
        let bucket = open.entry(kind.clone()).or_insert_with(new);
        let end = bucket.elements + parameter.elements();
        bucket.members.push((index, bucket.elements..end));
        bucket.elements = end;
        if end * 4 >= bytes_max {
            buckets.extend(open.remove(&kind));
        }
    }
    buckets.extend(open.into_values());
    buckets.sort_by_key(|bucket| bucket.members.last().map(|(parameter, _)| *parameter));
    let mut places = vec![(0, 0..0); parameters.len()];
    for (number, bucket) in buckets.iter().enumerate() {
        for (parameter, range) in &bucket.members {
            places[*parameter] = (number, range.clone());
        }
    }
    (buckets, places)
}

impl Bucket {
    /// Returns an empty bucket for gradients that travel as this parameter's.
    fn like(parameter: &Parameter) -> Bucket {
        let Parameter { dtype, ranks, target, transport, .. } = parameter.clone();
        let (members, elements, exempt, rule) = (Vec::new(), 0, false, None);
        Bucket { members, elements, exempt, dtype, ranks, target, transport, rule }
    }

    /// Returns the bucket of one parameter, with this place in a list, which a codec may compress whatever
    /// its shape is.
    pub(crate) fn of_one(index: usize, parameter: &Parameter) -> Bucket {
        let elements = parameter.elements();
        let members = vec![(index, 0..elements)];
        Bucket { members, elements, ..Bucket::like(parameter) }
    }

    /// Whether the bucket may be summed so among so many ranks where no [`Transport`] says so: units and trees must
    /// be for as many, and chunks are in rank order in flat sums alone.
    pub(crate) fn takes(&self, summation: Summation, world_size: usize) -> bool {
        let whole = self.target == Target::Whole && summation.divides(world_size);
        let is_for_any = summation.unit == 1 && !matches!(summation.algorithm, Algorithm::Trees(_));
        whole && self.ranks.is_empty() || is_for_any
    }

    /// Returns the codec that loses nothing of its gradients.
    pub(crate) fn raw(&self) -> Arc<dyn Codec> {
        thinwire_codec::raw_of(self.dtype)
    }

    /// Returns the codec that takes the place of `choice`, if gradients of this dtype need another one to
    /// lose nothing in few bytes.
    pub(crate) fn suited(&self, choice: &Choice) -> Option<Choice> {
        match (choice.to_string().as_str(), self.dtype) {
            ("lossless", DType::BF16) => Choice::parse("lossless:bf16").ok(),
            ("lossless", DType::F16) => Some(Choice::Bytes(self.raw())),
            _ => None,
        }
    }

    /// Returns the name of the bucket: its first and last parameter.
    pub(crate) fn name(&self, parameters: &[Parameter]) -> String {
        let name = |member: Option<&(usize, Range<usize>)>| {
            member.map_or("", |(parameter, _)| parameters[*parameter].name.as_str()).to_owned()
        };
        match self.members.len() {
            0 | 1 => name(self.members.first()),
            count => {
                format!("{} … {} ({count})", name(self.members.first()), name(self.members.last()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_parameter_is_in_one_bucket(
            shapes in prop::collection::vec((prop::collection::vec(1_usize..20, 0..4), 0..6), 0..40),
            bytes_max in 1_usize..4000,
        ) {
            let parameter = |(index, (shape, kind)): (usize, &(Vec<usize>, i32))| Parameter {
                dtype: DType::ALL[*kind as usize % 3],
                bucket: index as u32 / 7,
                ..Parameter::new(&format!("p{index}"), shape)
            };
            let parameters: Vec<Parameter> = shapes.iter().enumerate().map(parameter).collect();
            let policy: Policy = "p1*=int4,*=int8".parse().unwrap();
            let (buckets, places) = layout(&parameters, bytes_max, Apart::Vectors, &policy);
            let mut seen = vec![0; parameters.len()];
            for (number, bucket) in buckets.iter().enumerate() {
                let mut end = 0;
                for (parameter, range) in &bucket.members {
                    prop_assert_eq!(range.start, end);
                    prop_assert_eq!(range.len(), parameters[*parameter].elements());
                    prop_assert_eq!(bucket.exempt, parameters[*parameter].is_exempt());
                    prop_assert_eq!(bucket.dtype, parameters[*parameter].dtype);
                    let rule = policy.rule(&parameters[*parameter].name);
                    prop_assert_eq!(bucket.rule, rule.filter(|_| !bucket.exempt));
                    let first = bucket.members[0].0;
                    prop_assert_eq!(parameters[first].bucket, parameters[*parameter].bucket);
                    prop_assert_eq!(&places[*parameter], &(number, range.clone()));
                    end = range.end;
                    seen[*parameter] += 1;
                }
                prop_assert_eq!(end, bucket.elements);
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }
}
