//! Which gradients travel together.
//!
//! Parameters are taken in the order in which their gradients become ready. A bucket is closed when
//! it has reached its size; tensors that travel uncompressed share buckets of their own, so that
//! a codec never sees them. Law: every parameter is in exactly one bucket, and the layout is a
//! function of the parameters alone, so it is the same on all ranks.

use std::ops::Range;

use crate::Parameter;

/// A set of parameters that is exchanged as one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The parameters in it and their elements in the bucket.
    pub(crate) members: Vec<(usize, Range<usize>)>,
    /// Elements in the bucket.
    pub(crate) elements: usize,
    /// It always travels uncompressed.
    pub(crate) exempt: bool,
}

/// Buckets of at least `bytes_max` bytes each, the last ones excepted, in order of readiness, and
/// for every parameter its bucket and its place in it.
pub(crate) fn layout(
    parameters: &[Parameter],
    bytes_max: usize,
) -> (Vec<Bucket>, Vec<(usize, Range<usize>)>) {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: [Option<Bucket>; 2] = [None, None];
    for (index, parameter) in parameters.iter().enumerate() {
        let exempt = parameter.is_exempt();
        let slot = &mut open[usize::from(exempt)];
        let bucket = slot.get_or_insert(Bucket { members: Vec::new(), elements: 0, exempt });
        let end = bucket.elements + parameter.elements();
        bucket.members.push((index, bucket.elements..end));
        bucket.elements = end;
        if end * 4 >= bytes_max {
            buckets.extend(slot.take());
        }
    }
    buckets.extend(open.into_iter().flatten());
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
    /// What to call it: its first and last parameter.
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
            shapes in prop::collection::vec(prop::collection::vec(1_usize..20, 0..4), 0..40),
            bytes_max in 1_usize..4000,
        ) {
            let parameters: Vec<Parameter> = shapes.iter().enumerate()
                .map(|(index, shape)| Parameter::new(&format!("p{index}"), shape)).collect();
            let (buckets, places) = layout(&parameters, bytes_max);
            let mut seen = vec![0; parameters.len()];
            for (number, bucket) in buckets.iter().enumerate() {
                let mut end = 0;
                for (parameter, range) in &bucket.members {
                    prop_assert_eq!(range.start, end);
                    prop_assert_eq!(range.len(), parameters[*parameter].elements());
                    prop_assert_eq!(bucket.exempt, parameters[*parameter].is_exempt());
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
