//! The timetable: the rounds that begin and end after each step.

/// A round of one fragment of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Round {
    /// The number of rounds of the fragment before this one.
    pub number: u64,
    /// The number of the fragment.
    pub fragment: u32,
}

/// An action that is due after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A round begins: its values are sent.
    Begin(Round),
    /// A round ends: ranks wait for its result, and apply it.
    End(Round),
}

/// Regular rounds of fragments that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timetable {
    /// Steps from one round of a fragment to its next, 1 or more.
    pub every: u64,
    /// The number of fragments, from 1 to `every`.
    pub fragments: u32,
    /// Steps from the beginning of a round to its end, at most `every`.
    pub delay: u64,
}

impl Timetable {
    /// Returns the actions that are due after a step, in order; steps count from 1. They are the same
    /// on all ranks.
    ///
    /// Law: every round ends `delay` steps after it has begun, and before the next one of its fragment begins.
    pub fn due(&self, step: u64) -> Vec<Action> {
        let begins = |step: u64| (0..self.fragments).filter_map(move |it| self.round(it, step));
        let ended = step.checked_sub(self.delay).into_iter().flat_map(begins).map(Action::End);
        let begun = begins(step).map(Action::Begin);
        match self.delay {
            0 => begun.chain(ended).collect(),
            _ => ended.chain(begun).collect(),
        }
    }

    /// Returns the round of a fragment that begins after a step, if any.
    fn round(&self, fragment: u32, step: u64) -> Option<Round> {
        // Beginnings are spread evenly, and the last fragment's come after every `every` steps.
        let turn = u128::from(fragment + 1) * u128::from(self.every) / u128::from(self.fragments);
        let since = step.checked_sub(turn as u64)?;
        let begins = since.is_multiple_of(self.every);
        begins.then_some(Round { number: since / self.every, fragment })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rounds_follow_each_other(every in 1_u64..40, parts in 0.0..1.0, delays in 0.0..=1.0) {
            let fragments = 1 + (parts * every as f64) as u32;
            let delay = (delays * every as f64) as u64;
            let timetable = Timetable { every, fragments, delay };
            let mut underway = BTreeMap::new();
            let mut begun = vec![0; fragments as usize];
            for step in 1..=4 * every {
                for action in timetable.due(step) {
                    match action {
                        Action::Begin(round) => {
                            prop_assert_eq!(round.number, begun[round.fragment as usize]);
                            begun[round.fragment as usize] += 1;
                            prop_assert_eq!(underway.insert(round.fragment, (round, step)), None);
                        }
                        Action::End(round) => {
                            prop_assert_eq!(underway.remove(&round.fragment), Some((round, step - delay)));
                        }
                    }
                }
            }
            prop_assert_eq!(begun, vec![4; fragments as usize]);
        }
    }

    #[test]
    fn fragments_take_turns() {
        let timetable = Timetable { every: 4, fragments: 2, delay: 1 };
        let begin = |number, fragment| Action::Begin(Round { number, fragment });
        let end = |number, fragment| Action::End(Round { number, fragment });
        let due: Vec<_> = (1..=6).map(|step| timetable.due(step)).collect();
        let expected = [
            vec![],
            vec![begin(0, 0)],
            vec![end(0, 0)],
            vec![begin(0, 1)],
            vec![end(0, 1)],
            vec![begin(1, 0)],
        ];
        assert_eq!(due, expected);
    }
}
