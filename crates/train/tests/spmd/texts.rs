//! Inputs of models of text are known by what they are, not by what they are called.

use thinwire_model::{Graph, Operator, Role, named};
use thinwire_train::spmd::Text;

const NAME: &str = "gpt:layers=1,width=8,heads=2,vocabulary=256,positions=8";

fn renamed(from: &str, to: &str) -> Graph {
    let mut graph = named(NAME, 2, 4).unwrap();
    let tensor = graph.tensors.iter_mut().find(|tensor| tensor.name == from).unwrap();
    tensor.name = to.to_owned();
    graph
}

#[test]
fn names_do_not_matter_where_shapes_tell() {
    for (from, to) in [("tokens", "x"), ("targets", "labels"), ("positions", "arange")] {
        Text::new(&renamed(from, to), None).unwrap();
    }
    Text::new(&renamed("tokens", "x"), Some("x")).unwrap();
}

#[test]
fn what_is_not_clear_is_asked_for() {
    let error = |graph: &Graph, named| Text::new(graph, named).unwrap_err().to_string();
    let graph = renamed("tokens", "x");
    let found = error(&graph, Some("ids"));
    assert_eq!(found, "the model has no input 'ids' for tokens, expected 'x'");
    // An input more that might be the tokens.
    let mut two = renamed("tokens", "x");
    let tokens = two.tensors.iter().position(|tensor| tensor.name == "x").unwrap();
    let more = |name: &str| {
        let described = two.tensors[tokens].clone();
        thinwire_model::Tensor { name: name.to_owned(), ..described }
    };
    // What is called segments is known by that.
    let segmented = [two.tensors.clone(), vec![more("segments")]].concat();
    Text::new(&Graph { tensors: segmented, ..two.clone() }, None).unwrap();
    two.tensors.push(more("others"));
    assert_eq!(
        error(&two, None),
        "several inputs may be the tokens, expected --input tokens=NAME with one of 'x', 'others'"
    );
    let found = error(&two, Some("x"));
    let expected = "expected tokens, positions and targets alone";
    assert_eq!(found, format!("the model reads 'others' of shape [2, 4], {expected}"));
    // A loss that compares with nothing that comes from outside.
    let mut none = renamed("tokens", "x");
    none.nodes.retain(|node| !matches!(node.operator, Operator::CrossEntropy(_)));
    assert!(error(&none, None).contains("has no cross-entropy"));
    assert!(none.tensors.iter().any(|tensor| tensor.role == Role::Input));
}
