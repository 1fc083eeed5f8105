//! Answers of etcd: JSON from outside, of which only a few fields are read. etcd writes 64-bit numbers as
//! strings.

use serde_json::Value;

use super::transport::decode;

/// Entry under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: Vec<u8>,
    /// Revision at which the key was created.
    pub created: i64,
    /// Revision of the last change.
    pub modified: i64,
}

/// Result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether all comparisons held.
    pub has_succeeded: bool,
    /// Revision of the store after the transaction.
    pub revision: i64,
    /// Entry that was read because a comparison failed.
    pub entry: Option<Entry>,
}

/// Reads the answer to a range of one key: the entry, or `Some(None)` if the key does not exist.
pub fn entry(answer: &Value) -> Option<Option<Entry>> {
    let Some(found) = answer["kvs"].as_array().and_then(|all| all.first()) else {
        // Empty lists are left out, and a header is in every answer.
        return answer["header"].is_object().then_some(None);
    };
    let (created, modified) = (number(&found["create_revision"])?, number(&found["mod_revision"])?);
    // An empty value is left out.
    let value = found["value"].as_str().map_or(Some(Vec::new()), decode)?;
    Some(Some(Entry { value, created, modified }))
}

/// Reads the answer to a transaction whose other branch asks for one key.
pub fn outcome(answer: &Value) -> Option<Outcome> {
    let revision = number(&answer["header"]["revision"])?;
    let has_succeeded = answer["succeeded"].as_bool().unwrap_or(false);
    let entry = match &answer["responses"][0]["response_range"] {
        range if range.is_object() => entry(range)?,
        _ => None,
    };
    Some(Outcome { has_succeeded, revision, entry })
}

/// Reads a lease that was granted: its id, as etcd writes it, and its time in seconds.
pub fn lease(answer: &Value) -> Option<(String, u64)> {
    let id = number(&answer["ID"])?;
    let seconds = u64::try_from(number(&answer["TTL"])?).ok()?;
    (1..=86_400).contains(&seconds).then(|| (id.to_string(), seconds))
}

/// Reads the answer to a keep-alive: whether the lease lives.
pub fn is_alive(answer: &Value) -> Option<bool> {
    let result = &answer["result"];
    result["ID"].as_str()?;
    // The time of a lease that has run out is zero, which is left out.
    Some(number(&result["TTL"]).is_some_and(|seconds| seconds > 0))
}

fn number(value: &Value) -> Option<i64> {
    value.as_str().and_then(|text| text.parse().ok())
}

#[cfg(test)]
#[cfg(feature = "etcd")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn answered(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    /// Answers of etcd 3.4.23.
    #[test]
    fn answers_of_etcd_are_understood() {
        let none =
            r#"{"header":{"cluster_id":"14","member_id":"8","revision":"1","raft_term":"2"}}"#;
        assert_eq!(entry(&answered(none)), Some(None));
        let one = r#"{"header":{"revision":"2"},"kvs":[{"key":"L3Q=","create_revision":"2","mod_revision":"5","version":"1","value":"YQ==","lease":"53"}],"count":"1"}"#;
        let found = Entry { value: b"a".to_vec(), created: 2, modified: 5 };
        assert_eq!(entry(&answered(one)), Some(Some(found.clone())));
        let done = r#"{"header":{"revision":"2"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"2"}}}]}"#;
        let expected = Outcome { has_succeeded: true, revision: 2, entry: None };
        assert_eq!(outcome(&answered(done)), Some(expected));
        let refused =
            format!(r#"{{"header":{{"revision":"9"}},"responses":[{{"response_range":{one}}}]}}"#);
        let expected = Outcome { has_succeeded: false, revision: 9, entry: Some(found) };
        assert_eq!(outcome(&answered(&refused)), Some(expected));
        let granted = r#"{"header":{"revision":"1"},"ID":"5306544430288528901","TTL":"2"}"#;
        assert_eq!(lease(&answered(granted)), Some(("5306544430288528901".to_owned(), 2)));
        let kept = r#"{"result":{"header":{"revision":"2"},"ID":"53","TTL":"2"}}"#;
        assert_eq!(is_alive(&answered(kept)), Some(true));
        assert_eq!(is_alive(&answered(r#"{"result":{"header":{},"ID":"53"}}"#)), Some(false));
    }

    proptest! {
        #[test]
        fn any_answer_is_understood_or_none(
            fields: Vec<(String, String)>, text: String, count in -9_i64..9
        ) {
            let all: Value = fields.into_iter().map(|(name, text)| (name, Value::from(text))).collect();
            let entries = json!([{ "create_revision": text, "mod_revision": "1", "value": text }]);
            let range = json!({ "header": all, "kvs": entries });
            let answers = [
                json!(text), json!(count), json!([text]), all, range.clone(),
                json!({ "header": { "revision": count.to_string() }, "responses": [{ "response_range": range }] }),
                json!({ "ID": text, "TTL": count.to_string(), "result": { "ID": text, "TTL": text } }),
            ];
            for answer in &answers {
                let _ = (entry(answer), outcome(answer), lease(answer), is_alive(answer));
            }
        }
    }
}
