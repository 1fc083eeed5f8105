//! What a plan sends of a parameter, as the executor brings it about.
//!
//! On every stage a parameter lies as its first user there wants it, divided as its ZeRO stage says.
//! In every micro-batch each user that wants it otherwise gets it brought, forward and again for
//! backward, and shares of its gradient are brought to where the first user's is summed. Once a step
//! the sum goes to where the optimiser works, and new values come home. Where several stages use a
//! parameter, the first of them updates it: the others send it their sums and get new values.
//!
//! | ZeRO | lies | is summed | is updated |
//! |---|---|---|---|
//! | 0 | whole | as the gradient is made | whole |
//! | 1 | whole | as the gradient is made | divided |
//! | 2 | whole | divided | divided |
//! | 3 | divided | divided | divided |

use std::collections::BTreeMap;

use thinwire_model::{Layout, Placement, Role, Sides, TensorId};

use super::moved::Step;
use crate::cost::{Coding, Sharding};

/// A parameter, and who reads it.
pub(super) struct Parameter {
    pub tensor: TensorId,
    /// In the order in which they compute.
    pub users: Vec<User>,
    sharding: Sharding,
}

/// A node that reads a parameter.
pub(super) struct User {
    pub block: usize,
    pub stage: usize,
    /// The parameter as the first block of the class calls it.
    pub tensor: TensorId,
    sides: Sides,
    /// Whether backward needs the parameter too.
    backward: bool,
}

/// Bytes that a device of a stage sends in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// In all micro-batches.
    pub micro: f64,
    /// Once a step.
    pub once: f64,
    /// In messages to other stages.
    pub messages: f64,
}

impl Sent {
    pub fn all(self) -> f64 {
        self.micro + self.once + self.messages
    }
}

/// Where a parameter lies on a stage.
struct Places {
    stage: usize,
    home: Layout,
    summed: Layout,
    updated: Layout,
}

impl Step<'_> {
    /// All parameters that are trained.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let mut all: BTreeMap<TensorId, Vec<User>> = BTreeMap::new();
        for (stage, outcome) in self.outcome.stages.iter().enumerate() {
            for block in outcome.blocks.clone() {
                for (tensor, user) in self.users(stage, block) {
                    all.entry(tensor).or_default().push(user);
                }
            }
        }
        let parameter = |(tensor, users): (TensorId, Vec<User>)| {
            let shardings = users.iter().map(|user| self.sharding(user.block, user.tensor));
            let sharding = shardings.max().unwrap_or(Sharding::None);
            Parameter { tensor, users, sharding }
        };
        all.into_iter().map(parameter).collect()
    }

    fn users(&self, stage: usize, block: usize) -> Vec<(TensorId, User)> {
        let graph = &self.prepared.graph;
        let class = &self.prepared.classes[self.prepared.of_block[block]];
        let shift = graph.blocks[block].nodes.start - class.nodes.start;
        let way = self.outcome.choice.of_block[block];
        let again = self.outcome.savings.recomputed[block];
        let redone = if again { self.redone(class) } else { Default::default() };
        let mut users = Vec::new();
        for (id, strategy) in self.chain.strategies(&self.outcome.choice, way) {
            let work = &class.work[&id];
            for (place, tensor) in graph.nodes[id].inputs.iter().enumerate() {
                if !matches!(graph.tensors[*tensor].role, Role::Parameter(_)) {
                    continue;
                }
                let sides = work.declaration.input_sides(place, strategy);
                let backward = work.read_inputs.contains(&place) || redone.contains(&id);
                let user = User { block, stage, tensor: *tensor, sides, backward };
                users.push((graph.nodes[id + shift].inputs[place], user));
            }
        }
        users
    }

    /// What a device of every stage that uses a parameter sends of it, over one level of the cluster
    /// or all.
    pub(super) fn sent(&self, parameter: &Parameter, level: Option<usize>) -> Vec<(usize, Sent)> {
        let shape = &self.prepared.graph.tensors[parameter.tensor].shape;
        let coding = self.coding(parameter);
        let by = |coding, from: &Layout, to: &Layout| {
            self.costs.parameter_sent(shape, [from, to], coding, level)
        };
        let sent = |from: &Layout, to: &Layout| by(None, from, to);
        let summed = |from: &Layout, to: &Layout| by(coding, from, to);
        let places = self.places(parameter);
        let rounds = self.outcome.rounds as f64;
        let (owner, others) = places.split_first().expect("a parameter has a user");
        let of_stage = |at: &Places| {
            let mine = || parameter.users.iter().filter(|user| user.stage == at.stage);
            let forward = self.brought(shape, &at.home, mine(), level);
            let backward = mine().rev().filter(|user| user.backward);
            let backward = self.brought(shape, &at.home, backward, level);
            let shares: f64 = mine().map(|user| summed(&user.sides.gradient, &at.summed)).sum();
            Sent {
                micro: rounds * (forward + backward + shares),
                once: summed(&at.summed, &at.updated),
                messages: 0.0,
            }
        };
        let mut all: Vec<(usize, Sent)> =
            places.iter().map(|at| (at.stage, of_stage(at))).collect();
        all[0].1.once += sent(&owner.updated, &owner.home);
        for (place, other) in others.iter().enumerate() {
            let message = |layout| self.costs.bytes(shape, layout);
            let crosses = level.is_none_or(|level| level == self.level([owner.stage, other.stage]));
            let crosses = if crosses { 1.0 } else { 0.0 };
            all[0].1.once += sent(&other.updated, &owner.updated);
            all[0].1.once += sent(&owner.updated, &other.home);
            all[0].1.messages += crosses * message(&other.home);
            all[place + 1].1.messages += crosses * message(&other.updated);
        }
        all
    }

    /// What a parameter's gradient is encoded with, and from which level on: of what its users want
    /// that which loses least.
    fn coding(&self, parameter: &Parameter) -> Option<(&Coding, usize)> {
        let treated =
            self.outcome.savings.overrides.iter().filter(|one| {
                parameter.users.iter().any(|user| (user.block, user.tensor) == one.of())
            });
        let codings = treated.filter_map(|one| one.transport.coding);
        let codings = codings.map(|(coding, level)| (&self.costs.codings[coding], level));
        codings.min_by(|a, b| a.0.loss.total_cmp(&b.0.loss))
    }

    /// Bringing a parameter from its home to those who want it otherwise, each from where it is
    /// nearest by then.
    fn brought<'b>(
        &self,
        shape: &[usize],
        home: &'b Layout,
        users: impl Iterator<Item = &'b User>,
        level: Option<usize>,
    ) -> f64 {
        let mut there = vec![home];
        let mut sum = 0.0;
        for user in users {
            let wanted = &user.sides.value;
            if there.contains(&wanted) {
                continue;
            }
            let sent = |from: &Layout, level| {
                self.costs.parameter_sent(shape, [from, wanted], None, level)
            };
            let order = |a: &&&Layout, b: &&&Layout| sent(a, None).total_cmp(&sent(b, None));
            sum += there.iter().min_by(order).map_or(0.0, |from| sent(from, level));
            there.push(wanted);
        }
        sum
    }

    /// Where a parameter lies on every stage that uses it, the owner first.
    fn places(&self, parameter: &Parameter) -> Vec<Places> {
        let shape = &self.prepared.graph.tensors[parameter.tensor].shape;
        let mut all: Vec<Places> = Vec::new();
        for user in &parameter.users {
            if all.iter().any(|known| known.stage == user.stage) {
                continue;
            }
            let Sides { value: whole, gradient } = &user.sides;
            let divided = divided(whole, gradient, (shape, &self.costs.mesh));
            let from = |least: Sharding, other: &Layout| match parameter.sharding >= least {
                true => divided.clone(),
                false => other.clone(),
            };
            let apart = divided != *whole;
            all.push(Places {
                stage: user.stage,
                home: from(Sharding::Parameters, whole),
                summed: if apart { from(Sharding::Gradients, gradient) } else { gradient.clone() },
                updated: from(Sharding::Optimizer, whole),
            });
        }
        all
    }

    /// The least bytes that devices of all its stages send of a parameter in a step: r ranks of one
    /// stage whose shares are summed and who all get the sum send 2 (r−1)/r of what each has, and
    /// every stage beyond the first the tensor there and back.
    pub(super) fn least(&self, parameter: &Parameter) -> f64 {
        let tensor = &self.prepared.graph.tensors[parameter.tensor];
        let alone = |user: &User| {
            let ranks = self.costs.sharers(&user.sides);
            2.0 * (ranks - 1.0) / ranks * self.costs.bytes(&tensor.shape, &user.sides.value)
        };
        let mut stages: BTreeMap<usize, f64> = BTreeMap::new();
        for user in &parameter.users {
            let most = stages.entry(user.stage).or_default();
            *most = most.max(alone(user));
        }
        let devices = self.costs.mesh.iter().product::<usize>() as f64;
        let once = tensor.elements() as f64 * self.costs.precision.element / devices;
        stages.values().sum::<f64>() + 2.0 * (stages.len() as f64 - 1.0) * once
    }

    /// The outermost level that a device of one stage crosses to the same place of another.
    pub(super) fn level(&self, [one, other]: [usize; 2]) -> usize {
        let devices: usize = self.costs.mesh.iter().product();
        let mut unit = 1;
        let mut outermost = 0;
        for (at, level) in self.costs.cluster.levels.iter().enumerate() {
            let apart =
                |device| (one * devices + device) / unit != (other * devices + device) / unit;
            if (0..devices).any(apart) {
                outermost = at;
            }
            unit *= level.size;
        }
        outermost
    }
}

/// A layout cut along the dimensions of the mesh on which it is replicated and its gradient partial,
/// each in the first dimension of the tensor that can be cut so.
fn divided(whole: &Layout, gradient: &Layout, (shape, mesh): (&[usize], &[usize])) -> Layout {
    let mut layout = whole.clone();
    for at in 0..mesh.len() {
        let shares = matches!(gradient.0[at], Placement::Partial(_));
        if layout.0[at] != Placement::Replicated || !shares {
            continue;
        }
        let cut = |dim: usize| {
            let inner = layout.0[at + 1..].contains(&Placement::Sharded(dim));
            let mut cut = layout.clone();
            cut.0[at] = Placement::Sharded(dim);
            (!inner && cut.fits(shape, mesh)).then_some(cut)
        };
        if let Some(cut) = (0..shape.len()).find_map(cut) {
            layout = cut;
        }
    }
    layout
}
