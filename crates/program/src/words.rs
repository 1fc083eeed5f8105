//! Counts in words.

/// "1 stage", "3 micro-batches".
pub fn counted(count: usize, name: &str) -> String {
    let more = match name.ends_with("ch") {
        _ if count == 1 => "",
        true => "es",
        false => "s",
    };
    format!("{count} {name}{more}")
}

/// "4 x 2 devices", of a mesh.
pub fn devices(mesh: &[usize]) -> String {
    let sizes: Vec<String> = mesh.iter().map(usize::to_string).collect();
    let s = if mesh.iter().all(|size| *size == 1) { "" } else { "s" };
    format!("{} device{s}", sizes.join(" x "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        assert_eq!([counted(1, "stage"), counted(0, "stage")], ["1 stage", "0 stages"]);
        let batches = [counted(1, "micro-batch"), counted(2, "micro-batch")];
        assert_eq!(batches, ["1 micro-batch", "2 micro-batches"]);
        assert_eq!([devices(&[1]), devices(&[4, 2])], ["1 device", "4 x 2 devices"]);
        assert_eq!([devices(&[1, 1]), devices(&[2, 1])], ["1 x 1 device", "2 x 1 devices"]);
    }
}
