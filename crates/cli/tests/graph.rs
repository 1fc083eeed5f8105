//! `thinwire graph` on real files: from a model or a file of edges to parts.

mod support;

use serde_json::Value;
use support::{Folder, Talker, eventually, finish_all, free_port, kill};

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_generated_graph_is_partitioned_and_keeps_what_it_has() {
    let folder = Folder::new("graph-generated");
    let blocks = ["--vertices", "600", "--columns", "8", "--format", "int8", "--train", "0.2"];
    let made = folder
        .run(&[&["graph", "generate", "blocks", "--output", "g.graph"], &blocks[..]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(made.stderr.contains("best accuracy by features alone: "), "{}", made.stderr);
    let info = |file: &str| json(&folder.run(&["graph", "info", file, "--json"]).stdout).remove(0);
    let before = info("g.graph");
    assert_eq!((&before["vertices"], &before["classes"]), (&600.into(), &4.into()));
    assert_eq!(before["features"]["bytes"], 600 * 12);
    let flags = ["--parts", "3", "--output", "p.graph", "--json"];
    let cut = folder.run(&[&["graph", "partition", "g.graph"], &flags[..]].concat());
    assert_eq!(cut.code, Some(0), "{}", cut.stderr);
    let lines = json(&cut.stdout);
    let methods: Vec<&str> = lines.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["hash", "ranges", "ldg", "fennel", "pagraph", "metis"]);
    assert_eq!(lines.iter().filter(|line| line["chosen"] == true).count(), 1);
    let after = info("p.graph");
    for field in ["vertices", "edges", "degree_max", "features", "classes", "training", "test"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    let parts = after["parts"].as_array().unwrap();
    assert_eq!((parts.len(), parts.iter().map(|n| n.as_u64().unwrap()).sum::<u64>()), (3, 600));
}

#[test]
fn a_file_that_is_read_is_not_overwritten() {
    let folder = Folder::new("graph-overwrite");
    std::fs::write(folder.path().join("edges.csv"), "0,1\n1,2\n").unwrap();
    let told = folder.run(&["graph", "import", "edges.csv", "--output", "./edges.csv"]);
    assert_eq!(told.code, Some(2));
    assert!(
        told.stderr.contains("--output would overwrite the file that is read, edges.csv"),
        "{}",
        told.stderr
    );
    assert_eq!(std::fs::read(folder.path().join("edges.csv")).unwrap(), b"0,1\n1,2\n");
    let generate = ["graph", "generate", "blocks", "--vertices", "60", "--output", "g.graph"];
    assert_eq!(folder.run(&generate).code, Some(0));
    let before = std::fs::read(folder.path().join("g.graph")).unwrap();
    let told = folder.run(&["graph", "train", "g.graph", "--output", "./g.graph"]);
    assert_eq!(told.code, Some(2));
    assert!(
        told.stderr.contains("--output would overwrite the file that is read, g.graph"),
        "{}",
        told.stderr
    );
    assert_eq!(std::fs::read(folder.path().join("g.graph")).unwrap(), before);
}

#[test]
fn losses_and_noise_that_are_no_numbers_are_errors() {
    let folder = Folder::new("graph-finite");
    let generate = ["graph", "generate", "blocks", "--vertices", "60", "--output", "g.graph"];
    for noise in ["nan", "-1"] {
        let told = folder.run(&[&generate[..], &[&format!("--noise={noise}")]].concat());
        assert_eq!(told.code, Some(2));
        assert!(told.stderr.contains("expected a finite number of 0 or more"), "{}", told.stderr);
    }
    let told = folder.run(&[&generate[..], &["--noise", "1e38"]].concat());
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let told = folder.run(&["graph", "train", "g.graph", "--output", "model.safetensors"]);
    assert_eq!(told.code, Some(2));
    assert!(told.stderr.contains("error: the loss is "), "{}", told.stderr);
    assert!(!folder.path().join("model.safetensors").exists());
}

#[test]
fn the_way_of_features_is_chosen_by_bytes_and_memory() {
    let folder = Folder::new("graph-supply");
    let blocks = ["--vertices", "600", "--columns", "8", "--train", "0.2", "--output", "g.graph"];
    let made = folder.run(&[&["graph", "generate", "blocks"], &blocks[..]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let predict = |words: &[&str]| {
        let flags = ["graph", "partition", "g.graph", "--parts", "3", "--method", "hash"];
        let fan_outs = ["--fan-outs", "-1,4", "--batch", "48", "--json"];
        let told = folder.run(&[&flags[..], &fan_outs, words].concat());
        assert_eq!(told.code, Some(0), "{words:?} {}", told.stderr);
        let [method, copies, remote] = <[Value; 3]>::try_from(json(&told.stdout)).unwrap();
        let names = [&copies["supply"], &remote["supply"]];
        assert_eq!(names, ["copies", "remote rows"]);
        assert_ne!(copies["chosen"], remote["chosen"]);
        let bytes = [&copies, &remote].map(|line| line["pass_bytes"].as_f64().unwrap());
        // Rows of eight f32, once each, spread over five passes.
        assert_eq!(bytes[0], method["remote_rows"].as_f64().unwrap() * 32.0 / 5.0);
        (copies["chosen"] == true, bytes[1])
    };
    let (copies_without_limit, all) = predict(&[]);
    let (copies_in_little, _) = predict(&["--memory", "7kB"]);
    assert!(copies_without_limit && !copies_in_little);
    // A cache of all rows requests each of those that batches use once, with 8 bytes.
    let (_, cached) = predict(&["--cache", "100kB"]);
    assert!(cached < all && cached <= 600.0 * 3.0 * 40.0 / 5.0, "{cached} {all}");
    let bare = ["--output", "bare.graph", "--scale", "6"];
    folder.run(&[&["graph", "generate", "rmat"], &bare[..]].concat());
    let told = folder.run(&["graph", "partition", "bare.graph", "--parts", "2", "--fan-outs", "3"]);
    let expected =
        "error: the graph has no features, so --fan-outs cannot predict their bytes\nhint: ";
    assert!(told.code == Some(2) && told.stderr.contains(expected), "{}", told.stderr);
}

#[test]
fn an_edge_list_is_imported() {
    let folder = Folder::new("graph-imported");
    std::fs::write(folder.path().join("e.csv"), "a,b\n0,1\n1,2\n").unwrap();
    let flags = ["--symmetric", "--train", "1", "--output", "g.graph"];
    let made = folder.run(&[&["graph", "import", "e.csv"], &flags[..]].concat());
    assert_eq!(
        (made.code, made.stderr.as_str()),
        (Some(0), "wrote g.graph: 3 vertices, 4 edges\n")
    );
    let info = folder.run(&["graph", "info", "g.graph"]);
    let is_largest = |line: &str| line.split_whitespace().eq(["largest", "in-degree", "2"]);
    assert!(info.stdout.lines().any(is_largest), "{}", info.stdout);
    let one = folder.run(&["graph", "partition", "g.graph", "--parts", "3", "--method", "hash"]);
    assert!(one.stdout.lines().last().unwrap().ends_with("chosen"), "{}", one.stdout);
}

/// An array of NumPy.
fn npy(dtype: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), values].concat()
}

#[test]
fn columns_of_an_edge_list_are_named_or_refused() {
    let folder = Folder::new("graph-columns");
    std::fs::write(folder.path().join("e.csv"), "id,src,dst\n7,0,1\n8,1,2\n").unwrap();
    let import = |flags: &[&str]| {
        folder.run(&[&["graph", "import", "e.csv", "--output", "g.graph"], flags].concat())
    };
    let refused = import(&[]);
    let expected = "error: e.csv: line 2: a third column, expected two columns\nhint: ";
    assert!(refused.code == Some(2) && refused.stderr.starts_with(expected), "{}", refused.stderr);
    let made = import(&["--columns", "2,3"]);
    assert_eq!(made.stderr, "wrote g.graph: 3 vertices, 2 edges\n");
    let same = import(&["--columns", "2,2"]);
    assert!(
        same.stderr.contains("columns '2,2', expected two or three different ones"),
        "{}",
        same.stderr
    );
    std::fs::write(folder.path().join("none.csv"), "src,dst\n").unwrap();
    let none = folder.run(&["graph", "import", "none.csv", "--output", "n.graph"]);
    let expected = "error: none.csv: no edges and no vertices, expected at least one edge\nhint: ";
    assert!(none.code == Some(2) && none.stderr.starts_with(expected), "{}", none.stderr);
}

#[test]
fn weights_and_types_are_kept_shown_and_drawn_by() {
    let folder = Folder::new("graph-weights");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("e.csv", b"src,dst,w\n1,0,0.5\n2,0,2\n0,1,0\n");
    write("m.mtx", b"%%MatrixMarket matrix coordinate real general\n3 3 1\n2 1 -4\n");
    write("t.npy", &npy("|u1", "(3,)", &[0, 2, 0]));
    write("y.npy", &npy("|u1", "(3,)", &[0, 1, 0]));
    write("x.npy", &npy("<f4", "(3,)", &[0; 12]));
    let run = |words: &[&str]| {
        let ended = folder.run(&[&["graph"], words].concat());
        assert_eq!(ended.code, Some(0), "{words:?} {}", ended.stderr);
        ended
    };
    let flags = ["--columns", "1,2,3", "--types", "t.npy", "--train", "1", "--output", "g.graph"];
    let arrays = ["--features", "x.npy", "--labels", "y.npy"];
    let made = run(&[&["import", "e.csv"], &flags[..], &arrays].concat());
    assert_eq!(made.stderr, "wrote g.graph: 3 vertices, 3 edges with weights\n");
    run(&["partition", "g.graph", "--parts", "2", "--method", "hash", "--output", "p.graph"]);
    for file in ["g.graph", "p.graph"] {
        let info = json(&run(&["info", file, "--json"]).stdout).remove(0);
        assert_eq!(info["types"], serde_json::json!([2, 0, 1]), "{file}");
        let [min, max] = ["min", "max"].map(|name| info["weights"][name].as_f64().unwrap());
        assert_eq!((min, max), (0.0, 2.0), "{file}");
        let text = run(&["info", file]).stdout;
        assert!(text.contains("0 to 2, mean 0.83"), "{text}");
    }
    let train = ["train", "g.graph", "--sampler", "weighted", "--passes", "1", "--fan-outs", "1"];
    run(&train);
    run(&["import", "m.mtx", "--unweighted", "--output", "u.graph"]);
    let at_least = "expected a finite number of at least 0\nhint: --unweighted";
    run(&[&["import", "e.csv", "--columns", "1,2", "--output", "n.graph"], &arrays[..]].concat());
    for (words, expected) in [
        (&["import", "m.mtx"][..], &*format!("m.mtx: line 3: weight -4, {at_least}")),
        (
            &["import", "e.csv", "--columns", "1,2,3", "--unweighted"],
            "--unweighted cannot be used with a column of weights in --columns\n",
        ),
        (
            &["import", "e.csv", "--columns", "1,2", "--types", "e.csv"],
            "e.csv: no array of NumPy\n",
        ),
        (&["train", "n.graph", "--sampler", "weighted"], "n.graph has no weights\nhint: "),
        (
            &["train", "g.graph", "--sampler", "weighted", "--model", "gcn"],
            "--sampler weighted cannot be used with --model gcn: its sum must represent all edges\nhint: ",
        ),
        (
            &["train", "g.graph", "--sampler", "weighted", "--fan-outs", "-1"],
            "--sampler weighted has no effect with only -1 in --fan-outs: all edges are taken\nhint: ",
        ),
    ] {
        let output = if words[0] == "import" { &["--output", "o.graph"][..] } else { &[] };
        let ended = folder.run(&[&["graph"], words, output].concat());
        assert_eq!(ended.code, Some(2), "{words:?} {}", ended.stderr);
        let expected = format!("error: {expected}");
        assert!(ended.stderr.starts_with(&expected), "{words:?} {}", ended.stderr);
    }
}

#[test]
fn features_and_labels_that_cannot_be_kept_are_refused_with_their_place() {
    let folder = Folder::new("graph-features");
    std::fs::write(folder.path().join("e.csv"), "0,1\n").unwrap();
    let bytes = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
    let write = |name: &str, array: Vec<u8>| std::fs::write(folder.path().join(name), array);
    write("nan.npy", npy("<f4", "(2, 2)", &bytes([0.0, 1.0, f32::NAN, 2.0]))).unwrap();
    write("large.npy", npy("<f4", "(2, 2)", &bytes([0.0, 7e4, 1.0, 2.0]))).unwrap();
    write("y.npy", npy("<f8", "(2,)", &[0; 16])).unwrap();
    for (flags, expected) in [
        (&["--features", "nan.npy"][..], "nan.npy: NaN in row 1, column 0, counted from 0\nhint: "),
        (
            &["--features", "large.npy", "--format", "f16"],
            "f16 holds at most 65504: large.npy: 70000 in row 0, column 1, counted from 0\nhint: ",
        ),
        (
            &["--labels", "y.npy"],
            "y.npy: an array of 1 float64 per vertex, expected one whole number\n",
        ),
    ] {
        let command = ["graph", "import", "e.csv", "--output", "g.graph"];
        let ended = folder.run(&[&command[..], flags].concat());
        let stderr = &ended.stderr;
        assert!(
            ended.code == Some(2) && stderr.starts_with(&format!("error: {expected}")),
            "{stderr}"
        );
    }
    let kept = ["graph", "import", "e.csv", "--output", "g.graph", "--features", "large.npy"];
    assert_eq!(folder.run(&kept).code, Some(0));
}

#[test]
fn a_bound_that_no_method_keeps_is_told() {
    let folder = Folder::new("graph-balance");
    let made = ["--vertices", "9", "--within", "1", "--between", "1", "--blocks", "2"];
    let flags = ["--train", "1", "--columns", "1", "--output", "g.graph"];
    let made = folder.run(&[&["graph", "generate", "blocks"], &made[..], &flags].concat());
    assert!(made.stderr.contains("best accuracy by features alone: "), "{}", made.stderr);
    // Nine training vertices in two parts are five and four at best.
    let told = folder.run(&["graph", "partition", "g.graph", "--parts", "2", "--balance", "1.1"]);
    assert!(
        told.stderr.starts_with("no method is within --balance; the closest, "),
        "{}",
        told.stderr
    );
    let one = ["graph", "partition", "g.graph", "--parts", "2", "--method", "hash"];
    let told = folder.run(&one).stderr;
    assert_eq!(told, "balance of training vertices: hash has 1.111, expected at most 1.02\n");
    let wide = folder.run(&[&one[..], &["--balance", "1.2"]].concat());
    assert_eq!(wide.stderr, "");
}

#[test]
fn a_network_learns_blocks_on_one_rank_and_on_parts() {
    let folder = Folder::new("graph-train");
    let blocks = ["--vertices", "1200", "--columns", "4", "--train", "0.3", "--output", "g.graph"];
    let made = folder.run(&[&["graph", "generate", "blocks"], &blocks[..]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let cut = ["graph", "partition", "g.graph", "--parts", "2", "--output", "p.graph"];
    assert_eq!(folder.run(&cut).code, Some(0));
    let train = |words: &[&str]| {
        let told = folder.run(&[&["graph", "train"], words].concat());
        assert_eq!(told.code, Some(0), "{words:?} {}", told.stderr);
        told
    };
    for model in ["sage", "gcn", "gat"] {
        let flags = ["--model", model, "--hidden", "16", "--passes", "12", "--batch", "60"];
        // Features alone reach 55.3 %.
        let reached = |file: &str, more: &[&str]| {
            let told = json(&train(&[&[file, "--json"], &flags[..], more].concat()).stdout);
            let passes: Vec<u64> = told.iter().filter_map(|line| line["pass"].as_u64()).collect();
            assert_eq!(passes, (1..=12).collect::<Vec<_>>());
            let sent = told[0]["sent_bytes"].as_u64().unwrap();
            (told[12]["test_accuracy"].as_f64().unwrap(), sent)
        };
        let (alone, sent) = reached("g.graph", &[]);
        assert!(alone > 0.9 && sent == 0, "{model} {alone} {sent}");
        let (together, sent) = reached("p.graph", &["--codec", "int8"]);
        assert!(together > 0.9 && sent > 0, "{model} {together} {sent}");
    }
    let told = train(&["p.graph", "--ranks", "1", "--passes", "1", "--output", "m.safetensors"]);
    let values = std::fs::read(folder.path().join("m.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&values[8..200]);
    assert!(header.contains(r#""layer.0.bias":{"dtype":"F32","shape":[64]"#), "{header}");
    assert!(told.stderr.starts_with("2 parts and 1 rank: training vertices"), "{}", told.stderr);
    let is_line =
        |line: &str| line.starts_with("pass 1: loss ") || line.starts_with("test accuracy ");
    assert!(
        told.stdout.lines().count() == 2 && told.stdout.lines().all(is_line),
        "{}",
        told.stdout
    );
}

#[test]
fn features_that_are_learned_tell_blocks_apart() {
    let folder = Folder::new("graph-learned");
    let blocks = ["--vertices", "800", "--columns", "0", "--train", "0.5", "--output", "g.graph"];
    let made = folder.run(&[&["graph", "generate", "blocks"], &blocks[..]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let train = |ranks: &str, more: &[&str]| {
        let flags = ["--features", "learned:16", "--fan-outs", "-1,-1", "--passes", "12"];
        let words = ["graph", "train", "g.graph", "--json", "--ranks", ranks, "--batch", "100"];
        let told = folder.run(&[&words[..], &flags, more].concat());
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        json(&told.stdout)
    };
    let (one, two) = (train("1", &[]), train("2", &[]));
    let served = train("2", &["--servers", "2", "--output", "m.safetensors"]);
    for ((one, two), served) in one.iter().zip(&two).zip(&served).take(4) {
        let [one, two, served] = [one, two, served].map(|line| line["loss"].as_f64().unwrap());
        assert!((one - two).abs() < 1e-3 * one, "{one} {two}");
        assert!((two - served).abs() < 1e-3 * two, "{two} {served}");
    }
    let values = std::fs::read(folder.path().join("m.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&values[8..600]);
    assert!(header.contains(r#""features":{"dtype":"F32","shape":[800,16]"#), "{header}");
    // Rounded to f16 on their way.
    let half = train("2", &["--servers", "1", "--consistency", "async", "--values", "f16"]);
    // Four blocks of equal size: chance is 25 %.
    for lines in [&one, &two, &served, &half] {
        let accuracy = lines[12]["test_accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.6, "{accuracy}");
    }
    assert!(two[0]["sent_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn a_resumed_training_is_the_uninterrupted_one() {
    let folder = Folder::new("graph-resumed");
    let blocks = ["--vertices", "300", "--columns", "4", "--train", "0.5", "--output", "g.graph"];
    assert_eq!(folder.run(&[&["graph", "generate", "blocks"], &blocks[..]].concat()).code, Some(0));
    let train = |words: &[&str]| {
        let flags = ["--ranks", "2", "--batch", "50", "--codec", "int8", "--dropout", "0.1"];
        folder.run(&[&["graph", "train", "g.graph"], &flags[..], words].concat())
    };
    let done = |words: &[&str]| {
        let ended = train(words);
        assert_eq!(ended.code, Some(0), "{words:?} {}", ended.stderr);
        ended
    };
    let kept = ["--checkpoint-dir", "kept"];
    let whole = done(&["--passes", "4", "--output", "whole.safetensors"]);
    done(&[&["--passes", "2"], &kept[..]].concat());
    let rest = ["--passes", "4", "--resume", "kept", "--output", "rest.safetensors"];
    let rest = done(&[&rest[..], &kept].concat());
    assert!(rest.stderr.contains("continuing from kept/step-"), "{}", rest.stderr);
    let [whole, rest] = [whole, rest].map(|ended| {
        let line = |line: &str| line.split(", sent").next().unwrap().to_owned();
        // Everything but the seconds.
        let line = |text: &str| line(text).rsplit_once(", ").map(|(start, _)| start.to_owned());
        ended.stdout.lines().filter(|it| it.starts_with("pass")).map(line).collect::<Vec<_>>()
    });
    assert_eq!(whole[2..], rest);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("whole.safetensors") == read("rest.safetensors"));
    for (words, expected) in [
        (
            &["--passes", "4", "--resume", "kept"][..],
            "has 4 passes, expected fewer than --passes 4\nhint: ",
        ),
        (
            &["--passes", "9", "--resume", "kept", "--hidden", "8"],
            "is of another training: the model is sage of 64 hidden outputs, 4 heads, here sage of 8",
        ),
        (
            &["--passes", "9", "--resume", "kept", "--ranks", "1"],
            "is of 2 ranks, this training has 1",
        ),
        (&["--resume", "gone"], "no checkpoint at gone: gone/manifest.json: "),
    ] {
        let ended = match words.contains(&"1") {
            true => folder.run(&[&["graph", "train", "g.graph", "--batch", "25"], words].concat()),
            false => train(words),
        };
        assert_eq!(ended.code, Some(2), "{words:?} {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{words:?} {}", ended.stderr);
    }
}

#[test]
fn a_folder_of_checkpoints_that_is_away_for_a_while_ends_no_training() {
    let folder = Folder::new("graph-away");
    let blocks = ["--vertices", "300", "--columns", "4", "--train", "0.5", "--output", "g.graph"];
    assert_eq!(folder.run(&[&["graph", "generate", "blocks"], &blocks[..]].concat()).code, Some(0));
    let flags =
        ["graph", "train", "g.graph", "--ranks", "2", "--batch", "300", "--passes", "99999"];
    let flags = [&flags[..], &["--checkpoint-dir", "kept", "--checkpoint-wait", "1"]].concat();
    let mut launcher = Talker::of(folder.command(&flags).spawn().unwrap());
    let [kept, away] = ["kept", "away"].map(|name| folder.path().join(name));
    let count = || std::fs::read_dir(&kept).map_or(0, |found| found.count());
    eventually(|| (count() > 2).then_some(()));
    std::fs::rename(&kept, &away).unwrap();
    let warning = launcher.said("the training continues without this checkpoint");
    assert!(warning.contains("kept was moved or removed"), "{warning}");
    let before = std::fs::read_dir(&away).unwrap().count();
    std::fs::rename(&away, &kept).unwrap();
    eventually(|| (count() > before + 1).then_some(()));
    kill(launcher.id());
    launcher.end();
}

#[test]
fn a_training_that_cannot_be_is_refused_before_ranks_start() {
    let folder = Folder::new("graph-train-refused");
    std::fs::write(folder.path().join("e.csv"), "0,1\n1,2\n").unwrap();
    let write = |name: &str, array| std::fs::write(folder.path().join(name), array).unwrap();
    write("x.npy", npy("<f4", "(3,)", &[0; 12]));
    write("y.npy", npy("|i1", "(3,)", &[1, 0, 255]));
    let import = |flags: &[&str]| {
        let made = folder.run(&[&["graph", "import", "e.csv"], flags].concat());
        assert_eq!(made.code, Some(0), "{}", made.stderr);
    };
    import(&["--output", "bare.graph"]);
    import(&["--output", "x.graph", "--features", "x.npy"]);
    import(&["--output", "none.graph", "--features", "x.npy", "--labels", "y.npy"]);
    write("s.npy", npy("|i1", "(3,)", &[1, 1, 1]));
    let all = ["--features", "x.npy", "--labels", "y.npy", "--split", "s.npy"];
    import(&[&["--output", "all.graph"], &all[..]].concat());
    for (words, expected) in [
        (&["bare.graph"][..], "bare.graph has no features\nhint: thinwire graph import --features"),
        (&["x.graph"], "x.graph has no labels\nhint: thinwire graph import --labels"),
        (
            &["all.graph", "--features", "learned:8"],
            "--features learned:8, but all.graph has features already, 1 f32\nhint: leave --features out",
        ),
        (
            &["bare.graph", "--features", "learned:0"],
            "invalid value 'learned:0' for '--features <HOW>': features 'learned:0', exp",
        ),
        (&["all.graph", "--servers", "2"], "vertex 2 is for train and has no label\nhint: "),
        (&["none.graph"], "none.graph has no training vertices\nhint: "),
        (&["all.graph"], "vertex 2 is for train and has no label\nhint: "),
        (
            &["x.graph", "--plan", "p.plan"],
            "--plan p.plan cannot be used with a graph neural network",
        ),
        (&["x.graph", "--heads", "2"], "--heads cannot be used with --model sage\nhint: "),
        (
            &["x.graph", "--model", "gin"],
            "invalid value 'gin' for '--model <MODEL>': model 'gin', ex",
        ),
        (
            &["all.graph", "--dropout", "1"],
            "invalid value '1' for '--dropout <SHARE>': expected a nu",
        ),
        (
            &["all.graph", "--model", "gat", "--heads", "5"],
            "64 hidden outputs for 5 heads, expected",
        ),
    ] {
        let ended = folder.run(&[&["graph", "train", "--ranks", "2"], words].concat());
        let stderr = &ended.stderr;
        assert!(ended.code == Some(2), "{words:?} {stderr}");
        assert!(stderr.starts_with(&format!("error: {expected}")), "{words:?} {stderr}");
    }
}

#[test]
fn ranks_that_go_on_from_other_checkpoints_are_refused() {
    let folder = Folder::new("graph-resumed-apart");
    let make = |words: &[&str]| {
        let ended = folder.run(&[&["graph"], words].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    };
    make(&["generate", "blocks", "--vertices", "200", "--output", "g.graph"]);
    for (kept, codec) in [("raw", "none"), ("int8", "int8")] {
        let flags = ["train", "g.graph", "--ranks", "2", "--passes", "1", "--codec", codec];
        make(&[&flags[..], &["--checkpoint-dir", kept]].concat());
    }
    for (other, found) in
        [(&["--resume", "int8"][..], "another checkpoint"), (&[], "the beginning")]
    {
        let address = format!("127.0.0.1:{}", free_port());
        let rank = |number: &'static str, resume: &[&str]| {
            let place = ["--rank", number, "--world", "2", "--coordinator", &address];
            let flags = ["graph", "train", "g.graph", "--passes", "2"];
            folder.command(&[&flags[..], &place, resume].concat()).spawn().unwrap()
        };
        let ended = finish_all([rank("0", &["--resume", "raw"]), rank("1", other)]);
        let expected =
            format!("error: this rank continues from raw/step-000001, but rank 1 from {found}\n");
        let said = &ended[0].stderr;
        assert!(ended[0].code == Some(2) && said.contains(&expected), "{said}");
        assert_eq!(ended[1].code, Some(2));
    }
}

#[test]
fn parts_of_many_machines_do_not_all_start_on_one() {
    let folder = Folder::new("graph-many-parts");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (vertices, parts) = ((80 * cores).to_string(), (8 * cores + 1).to_string());
    let make = |words: &[&str]| {
        let ended = folder.run(&[&["graph"], words].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    };
    make(&["generate", "blocks", "--vertices", &vertices, "--train", "0.9", "--output", "g.graph"]);
    let cut = ["partition", "g.graph", "--method", "hash", "--output", "p.graph"];
    make(&[&cut[..], &["--parts", &parts]].concat());
    let ended = folder.run(&["graph", "train", "p.graph"]);
    let most = 8 * cores;
    let expected = format!(
        "error: {parts} parts would start {parts} ranks on {cores} cores, expected at most {most}\nhint: give --ranks"
    );
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.starts_with(&expected), "{}", ended.stderr);
    make(&["train", "p.graph", "--ranks", "1", "--passes", "1"]);
}

#[test]
fn classes_without_a_vertex_are_said() {
    let folder = Folder::new("graph-classes");
    std::fs::write(folder.path().join("e.csv"), "0,1\n1,2\n").unwrap();
    let labels = npy("|i1", "(3,)", &[100, 0, 255]);
    std::fs::write(folder.path().join("y.npy"), labels).unwrap();
    let import = ["graph", "import", "e.csv", "--labels", "y.npy", "--output", "g.graph"];
    let said = folder.run(&import).stderr;
    let expected =
        "labels are of 101 classes, but only 2 of these have a vertex: number classes from 0\n";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn errors_have_the_place_and_both_values() {
    let folder = Folder::new("graph-errors");
    std::fs::write(folder.path().join("e.txt"), "0 1\n1 x\n").unwrap();
    std::fs::write(folder.path().join("g.txt"), "0 1\n").unwrap();
    let made = folder.run(&["graph", "import", "g.txt", "--output", "g.graph"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for (words, expected) in [
        (
            &["import", "e.txt", "--output", "o.graph"][..],
            "error: e.txt: line 2: 'x', expected the destination of an edge\n",
        ),
        (
            &["import", "g.txt", "--output", "o.graph", "--vertices", "1"],
            "error: g.txt: the file has vertex 1",
        ),
        (
            &["import", "gone.txt", "--output", "o.graph"],
            "error: gone.txt: cannot open: No such file",
        ),
        (&["import", "g.xml", "--output", "o.graph"], "error: g.xml: a name that ends in 'xml'"),
        (&["info", "g.txt"], "error: g.txt: 4 bytes, expected a header of 128 bytes"),
        (&["partition", "g.graph", "--parts", "2"], "error: no training vertices\nhint: "),
        (
            &["partition", "g.graph", "--parts", "3"],
            "error: 3 parts of 2 vertices, expected 1 to 2\n",
        ),
        (
            &[
                "generate",
                "blocks",
                "--output",
                "o.graph",
                "--vertices",
                "4000000000",
                "--within",
                "9999",
            ],
            "error: a graph of 4 000 000 000 vertices needs about ",
        ),
    ] {
        let ended = folder.run(&[&["graph"], words].concat());
        assert_eq!(ended.code, Some(2), "{words:?} {}", ended.stderr);
        assert!(ended.stderr.starts_with(expected), "{words:?} {}", ended.stderr);
    }
}

#[test]
fn a_matrix_that_does_not_say_whose_lists_it_has_is_asked() {
    let folder = Folder::new("graph-orientation");
    let int32 = |values: &[i32]| values.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let arrays = [
        ("indptr.npy", npy("<i4", "(4,)", &int32(&[0, 2, 2, 3]))),
        ("indices.npy", npy("<i4", "(3,)", &int32(&[1, 2, 0]))),
    ];
    std::fs::write(folder.path().join("m.npz"), stored_zip(&arrays)).unwrap();
    let import = |flags: &[&str]| {
        folder.run(&[&["graph", "import", "m.npz", "--output", "g.graph"], flags].concat())
    };
    let refused = import(&[]);
    let expected = "error: m.npz: indptr and indices without a format, expected an orientation\nhint: --orientation in";
    assert!(refused.code == Some(2) && refused.stderr.starts_with(expected), "{}", refused.stderr);
    assert!(!folder.path().join("g.graph").exists());
    // Vertex 0 has the list 1, 2: two in-neighbours, or one list of each other vertex has it.
    for (said, sources) in [("in", 1), ("out", 0)] {
        let made = import(&["--orientation", said]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let info = json(&folder.run(&["graph", "info", "g.graph", "--json"]).stdout).remove(0);
        assert_eq!((&info["sources"], &info["edges"]), (&sources.into(), &3.into()), "{said}");
    }
}

/// A zip archive of files that are stored as they are.
fn stored_zip(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let sum = thinwire_wire::checksum(bytes).to_le_bytes();
        let size = (bytes.len() as u32).to_le_bytes();
        let length = (name.len() as u16).to_le_bytes();
        let about =
            [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0], &sum[..], &size, &size, &length, &[0; 2]].concat();
        let at = (archive.len() as u32).to_le_bytes();
        archive.extend([b"PK\x03\x04", &about[..], name.as_bytes(), bytes].concat());
        let entry = [b"PK\x01\x02\x14\x00", &about[..], &[0; 10], &at, name.as_bytes()].concat();
        directory.extend(entry);
    }
    let count = (files.len() as u16).to_le_bytes();
    let sizes =
        [(directory.len() as u32).to_le_bytes(), (archive.len() as u32).to_le_bytes()].concat();
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &sizes, &[0; 2]].concat();
    [archive, directory, end].concat()
}

#[test]
fn ids_of_vertices_are_kept_shown_and_moved_with_parts() {
    let folder = Folder::new("graph-ids");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("e.csv", "\u{feff}src,dst\n\"new york\",bern\noslo,\"new york\"\n".as_bytes());
    write("y.npy", &npy("<i8", "(3,)", &[-100_i64, 1, 0].map(i64::to_le_bytes).concat()));
    write("n.txt", b"% KONECT\n9000000000 -5\n-5 7\n");
    write("one.txt", b"1 2\n2 3\n");
    let run = |words: &[&str], code: i32| {
        let ended = folder.run(&[&["graph"], words].concat());
        assert_eq!(ended.code, Some(code), "{words:?} {}", ended.stderr);
        ended
    };
    let flags = ["--relabel", "--header", "yes", "--labels", "y.npy", "--train", "1"];
    let made = run(&[&["import", "e.csv", "--output", "g.graph"], &flags[..]].concat(), 0);
    assert_eq!(made.stderr, "wrote g.graph: 3 vertices with ids, 2 edges\n");
    let ids = |file: &str| {
        let lines = json(&run(&["info", file, "--ids", "--json"], 0).stdout);
        lines.iter().map(|line| line["id"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(ids("g.graph"), ["bern", "new york", "oslo"]);
    let info = json(&run(&["info", "g.graph", "--json"], 0).stdout).remove(0);
    // Bern has no label, so it is no vertex of the split.
    assert_eq!((&info["ids"], &info["training"]), (&"texts".into(), &2.into()));
    run(&["partition", "g.graph", "--parts", "2", "--method", "hash", "--output", "p.graph"], 0);
    let mut moved: Vec<String> =
        ids("p.graph").iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    moved.sort_unstable();
    assert_eq!(moved, ["bern", "new york", "oslo"]);
    run(&["import", "n.txt", "--relabel", "--output", "n.graph"], 0);
    assert_eq!(ids("n.graph"), [-5_i64, 7, 9_000_000_000]);
    let text = run(&["info", "n.graph", "--verify"], 0).stdout;
    assert!(text.contains("checksums") && text.contains("numbers, which --ids shows"), "{text}");
    let noticed = run(&["import", "one.txt", "--output", "o.graph"], 0).stderr;
    assert!(
        noticed.starts_with("vertex 0 has no edges, and vertex 1 has: add --one-based"),
        "{noticed}"
    );
    let made = run(&["import", "one.txt", "--one-based", "--output", "o.graph"], 0);
    assert_eq!(made.stderr, "wrote o.graph: 3 vertices, 2 edges\n");
    for (words, expected) in [
        (
            &["info", "o.graph", "--ids"][..],
            "o.graph has no ids of vertices\nhint: thinwire graph import --relabel",
        ),
        (
            &["import", "n.txt", "--output", "x.graph"],
            "n.txt: line 2: vertex 9000000000, expected vertices below 4294967295\nhint: --relabel",
        ),
        (
            &["import", "e.csv", "--relabel", "--output", "x.graph"],
            "e.csv: line 1: 'src', expected to know whether it is a header\nhint: --header",
        ),
    ] {
        let stderr = run(words, 2).stderr;
        assert!(stderr.starts_with(&format!("error: {expected}")), "{stderr}");
    }
}

#[test]
fn a_damaged_file_is_found_by_its_checksums() {
    let folder = Folder::new("graph-damaged");
    let generate = ["graph", "generate", "blocks", "--vertices", "60", "--output", "g.graph"];
    assert_eq!(folder.run(&generate).code, Some(0));
    let path = folder.path().join("g.graph");
    let bytes = std::fs::read(&path).unwrap();
    let verify = ["graph", "info", "g.graph", "--verify", "--json"];
    let verified = json(&folder.run(&verify).stdout).remove(0);
    assert_eq!(verified["verified"], true);
    let mut changed = bytes.clone();
    // A bit of a feature or a label is a value like any other.
    let at = bytes.len() - 61;
    changed[at] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    let told = folder.run(&verify);
    assert!(
        told.code == Some(2) && told.stderr.contains("g.graph: checksum of "),
        "{}",
        told.stderr
    );
    let mut header = bytes;
    header[40..48].copy_from_slice(b"int8\0\0\0\0");
    let sum = thinwire_wire::checksum(&header[16..128]).to_le_bytes();
    header[12..16].copy_from_slice(&sum);
    std::fs::write(&path, &header).unwrap();
    let told = folder.run(&["graph", "train", "g.graph", "--passes", "1"]);
    let expected = "error: g.graph: rows of features of ";
    assert!(told.code == Some(2) && told.stderr.starts_with(expected), "{}", told.stderr);
}
