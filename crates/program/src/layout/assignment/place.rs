//! The chunk and the strategy of a node of a training graph. They are taken from the plan for the
//! model's nodes, from the model's node for gradients, and from the terms for sums.

use thinwire_model::{
    Cut, Declaration, Layout, NodeId, Origin, Placement, Reduction, Strategy, TensorId, conversion,
};

use super::{Assignment, End};

impl Assignment<'_> {
    /// If all parts of the batch need the whole of a tensor, makes each of them compute the whole instead of
    /// gathering it, since parts with unequal work cannot exchange anything.
    pub(super) fn gather_nothing(&mut self) {
        for node in (0..self.forward.len()).rev() {
            let outputs = self.training.graph.nodes[node].outputs.iter().enumerate();
            let gathered = outputs.map(|(at, tensor)| {
                let made = self.declarations[node].output_sides(at, &self.forward[node]).value;
                let mut readers =
                    self.consumers[*tensor].iter().filter(|end| self.is_forward(end.0));
                matches!(made.0[0], Placement::Sharded(_))
                    && readers.any(|(reader, input)| {
                        let strategy = &self.forward[*reader];
                        let wanted = self.declarations[*reader].input_sides(*input, strategy);
                        wanted.value.0[0] == Placement::Replicated
                    })
            });
            if gathered.into_iter().any(|gathered| gathered) {
                self.forward[node].0[0] = Cut::Whole;
            }
        }
        self.sum_later();
    }

    /// Applies linear operators, such as the mean of a loss, to partial sums without reducing them first.
    fn sum_later(&mut self) {
        for node in 0..self.forward.len() {
            let inputs = self.training.graph.nodes[node].inputs.iter();
            let mut partial = inputs.map(|tensor| match self.producers[*tensor] {
                Some((made, at)) => {
                    let sides = self.declarations[made].output_sides(at, &self.forward[made]);
                    sides.value.0[0] == Placement::Partial(Reduction::Sum)
                }
                None => false,
            });
            let linear = self.declarations[node].linear && self.forward[node].0[0] == Cut::Whole;
            if linear && partial.next() == Some(true) && partial.all(|partial| partial) {
                self.forward[node].0[0] = Cut::Sum;
            }
        }
    }

    /// Returns the chunk and the strategy of a node whose inputs are assigned.
    pub(super) fn place(&self, node: NodeId) -> (usize, Strategy) {
        match self.training.origins[node] {
            Origin::Forward => (self.block_plan(node).chunk, self.forward[node].clone()),
            Origin::Seed => {
                let loss = self.training.graph.loss.and_then(|loss| self.producers[loss]);
                (self.chunks[loss.expect("a node computes the loss").0], self.whole())
            }
            Origin::Gradient(of) => {
                let carried =
                    self.declarations[of].carried(&self.strategies[of], &self.declarations[node]);
                let allowed = self.declarations[node].allows(&carried, &self.sizes);
                (self.chunks[of], if allowed { carried } else { self.whole() })
            }
            Origin::Accumulate(tensor) => self.place_sum(node, tensor),
        }
    }

    fn whole(&self) -> Strategy {
        Strategy(vec![Cut::Whole; self.sizes.len()])
    }

    fn place_sum(&self, node: NodeId, of: TensorId) -> (usize, Strategy) {
        let terms = self.training.graph.nodes[node].inputs.iter();
        let terms: Vec<End> = terms.map(|id| self.producers[*id].expect("a gradient")).collect();
        let chunks: Vec<usize> = terms.iter().map(|(term, _)| self.chunks[*term]).collect();
        let producer = self.producers[of];
        let chunk = match producer {
            Some((producer, _)) if chunks[0] != chunks[1] => self.chunks[producer],
            _ => chunks[0],
        };
        let layouts: Vec<Layout> = terms.iter().map(|term| self.produced(*term)).collect();
        let wanted = producer.map_or_else(
            || layouts[0].clone(),
            |(id, output)| {
                self.declarations[id].output_sides(output, &self.strategies[id]).gradient
            },
        );
        let agreed = layouts[0].0.iter().zip(&layouts[1].0).zip(&wanted.0);
        let agreed = agreed.map(|((a, b), wanted)| if a == b { *a } else { *wanted });
        let agreed = Layout(agreed.collect());
        let declaration = &self.declarations[node];
        let sent =
            |layout: &Layout| self.sent(of, &layouts, layout) + self.sent(of, [layout], &wanted);
        let places = [&agreed, &layouts[0], &layouts[1], &wanted].into_iter();
        let tried = places.map(|layout| (layout, cuts(declaration, layout)));
        let allowed = tried.filter(|(_, strategy)| declaration.allows(strategy, &self.sizes));
        // Of equal ones the first.
        let best = allowed.min_by(|(a, _), (b, _)| sent(a).total_cmp(&sent(b)));
        (chunk, best.map_or_else(|| cuts(declaration, &wanted), |(_, strategy)| strategy))
    }

    /// Returns the number of elements that a rank sends to convert tensors of one shape to a layout; infinite
    /// if that is impossible.
    fn sent<'b>(
        &self,
        tensor: TensorId,
        from: impl IntoIterator<Item = &'b Layout>,
        to: &Layout,
    ) -> f64 {
        let shape = &self.training.graph.tensors[tensor].shape;
        let sent = |from: &Layout| match conversion(shape, &self.sizes, from, to) {
            Ok(steps) => steps.iter().map(|step| step.sent(self.sizes[step.mesh_dim])).sum(),
            Err(_) => f64::INFINITY,
        };
        from.into_iter().map(sent).sum()
    }
}

/// Returns the strategy of a sum of two tensors if all three have this layout.
fn cuts(declaration: &Declaration, layout: &Layout) -> Strategy {
    Strategy(layout.0.iter().map(|placement| cut_of(declaration, *placement)).collect())
}

fn cut_of(declaration: &Declaration, placement: Placement) -> Cut {
    match placement {
        Placement::Replicated => Cut::Whole,
        Placement::Sharded(dim) => Cut::Axis(declaration.inputs[0].dims[dim].axis),
        Placement::Partial(_) => Cut::Sum,
    }
}
