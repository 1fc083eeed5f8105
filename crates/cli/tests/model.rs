//! Models, shown.

mod support;

use support::Folder;

#[test]
fn a_model_is_shown_layer_by_layer() {
    let folder = Folder::new("model");
    let [gpt] = &folder.run(&["model", "show", "gpt2-medium", "--batch", "2", "--json"]).json()[..]
    else {
        panic!("one object")
    };
    assert_eq!(gpt["parameters"], 354_823_168);
    assert_eq!((&gpt["batch"], &gpt["sequence"]), (&2.into(), &1024.into()));
    let blocks: Vec<_> = gpt["classes"].as_array().unwrap().iter().map(|c| &c["blocks"]).collect();
    assert_eq!(blocks, [1, 24, 1]);

    let text = folder.run(&["model", "show", "gpt2-medium", "--sequence", "8"]).done();
    assert!(text.contains("\n24 × block.0 … block.23\n"), "{text}");
    assert!(text.contains("b=1 s=8 k=1024 n=3072"), "{text}");
}

#[test]
fn a_model_that_is_none_is_told_of() {
    let folder = Folder::new("no-model");
    let ended = folder.run(&["model", "show", "gpt5"]);
    let error = ended.error();
    assert!(error.starts_with("error: no model is called 'gpt5', expected one of gpt2, "));
    let ended = folder.run(&["model", "show", "bert-base", "--sequence", "600"]);
    let expected = "error: bert-base: a sequence has 600 tokens, the model has 512 positions";
    assert_eq!(ended.error(), expected);
}
