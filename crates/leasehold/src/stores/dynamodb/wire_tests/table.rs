//! Tests how a table is checked before it is used, and how it is created.

use super::*;

fn table(status: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut table = json!({
        "TableName": "locks", "TableStatus": status,
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
    });
    change(&mut table);
    ok(&json!({"Table": table}))
}

#[tokio::test]
async fn a_missing_table_is_created_and_waited_for() {
    for created in [ok(&json!({})), refused("400 X", "", "ResourceInUseException")] {
        let script = Mutex::new(vec![
            table("ACTIVE", |_| ()),
            table("CREATING", |_| ()),
            created,
            refused("400 X", "", "ResourceNotFoundException"),
        ]);
        let server = Server::start(move |_| Reply::Answer(script.lock().unwrap().pop().unwrap())).await;
        server.store().init().await.unwrap();
        let requests = server.requests();
        let operations: Vec<_> = requests.iter().map(Seen::operation).collect();
        assert_eq!(operations, ["describetable", "createtable", "describetable", "describetable"]);
        let create = requests[1].json();
        assert_eq!(create["BillingMode"], "PAY_PER_REQUEST");
        assert_eq!(create["KeySchema"], json!([{"AttributeName": "key", "KeyType": "HASH"}]));
    }
    let there = Server::always(table("UPDATING", |_| ())).await;
    there.store().init().await.unwrap();
    assert_eq!(there.requests().len(), 1, "an existing table is only looked at");
}

#[tokio::test]
async fn a_table_that_is_not_one_of_locks_is_refused() {
    let sort_key = json!({"AttributeName": "at", "KeyType": "RANGE"});
    type Change = Box<dyn FnOnce(&mut Value)>;
    let rows: [(&str, Change, ErrorKind); 5] = [
        (
            "`key` and `at`",
            Box::new(move |t| t["KeySchema"].as_array_mut().unwrap().push(sort_key)),
            ErrorKind::Invalid,
        ),
        (
            "`key`",
            Box::new(|t| t["AttributeDefinitions"][0]["AttributeType"] = json!("N")),
            ErrorKind::Invalid,
        ),
        (
            "`holder`",
            Box::new(|t| {
                t["KeySchema"][0]["AttributeName"] = json!("holder");
                t["AttributeDefinitions"][0]["AttributeName"] = json!("holder");
            }),
            ErrorKind::Invalid,
        ),
        (
            "global table",
            Box::new(|t| t["Replicas"] = json!([{"RegionName": "us-west-2"}])),
            ErrorKind::Unsupported,
        ),
        (
            "global table",
            Box::new(|t| {
                t["Replicas"] = json!([{"RegionName": "us-west-2"}]);
                t["MultiRegionConsistency"] = json!("EVENTUAL");
            }),
            ErrorKind::Unsupported,
        ),
    ];
    for (named, change, kind) in rows {
        let error = Server::always(table("ACTIVE", change)).await.store().init().await.unwrap_err();
        assert_eq!(error.fault().kind, kind, "{error:?}");
        assert!(error.to_string().contains(named) && error.fault().help.is_some(), "{error:?}");
    }
    let strong = table("ACTIVE", |t| {
        t["Replicas"] = json!([{"RegionName": "us-west-2"}]);
        t["MultiRegionConsistency"] = json!("STRONG");
    });
    Server::always(strong).await.store().init().await.unwrap();
}

const URL: &str = "dynamodb://locks/pre/fix";

fn unseen(server: &Server, url: &str) -> DynamoDb {
    let store = opened(url, Some(&server.url), test_credentials());
    store.probed.pass();
    store
}

/// Starts a server that describes its table as `described`, and responds to every other request with success.
async fn with_table(described: String) -> Server {
    Server::start(move |seen| {
        Reply::Answer(match seen.operation() {
            "describetable" => described.clone(),
            "getitem" => ok(&json!({"Item": java_item()})),
            _ => ok(&json!({})),
        })
    })
    .await
}

fn operations(server: &Server) -> Vec<String> {
    server.requests().iter().map(|seen| seen.operation().to_owned()).collect()
}

/// Conditions are checked against the copy of one region, and between regions the last writer wins.
#[tokio::test]
async fn a_global_table_is_refused_at_first_use() {
    for consistency in [None, Some("EVENTUAL")] {
        let server = with_table(table("ACTIVE", |t| {
            t["Replicas"] = json!([{"RegionName": "us-west-2"}]);
            if let Some(consistency) = consistency {
                t["MultiRegionConsistency"] = json!(consistency);
            }
        }))
        .await;
        let store = unseen(&server, URL);
        for _ in 0..2 {
            let error = store.trust().await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
            assert!(error.to_string().contains("global table"), "{error:?}");
            assert!(error.fault().help.as_ref().unwrap().contains("one region"), "{error:?}");
        }
        assert!(write(&store).await.is_err(), "not even by a write that asked for no trust");
        assert_eq!(operations(&server), ["describetable"; 3]);
    }
}

/// With strong consistency, every region evaluates conditions against the latest version of an item.
#[tokio::test]
async fn a_strongly_consistent_global_table_is_used() {
    let server = with_table(table("ACTIVE", |t| {
        t["Replicas"] = json!([{"RegionName": "us-west-2"}]);
        t["MultiRegionConsistency"] = json!("STRONG");
    }))
    .await;
    let store = unseen(&server, URL);
    store.trust().await.unwrap();
    write(&store).await.unwrap();
    write(&store).await.unwrap();
    assert_eq!(operations(&server), ["describetable", "updateitem", "updateitem"], "looked at once");
}

#[tokio::test]
async fn a_table_that_may_not_be_described_is_used() {
    for refusal in
        [refused("400 X", "", "AccessDeniedException"), refused("400 X", "", "UnknownOperationException")]
    {
        let server = with_table(refusal).await;
        let store = unseen(&server, URL);
        store.trust().await.unwrap();
        write(&store).await.unwrap();
        store.read(&x()).await.unwrap();
        assert_eq!(operations(&server), ["describetable", "updateitem", "getitem"], "asked once");
        let store = unseen(&server, "dynamodb://locks/pre/fix?partition_key=LockID");
        store.read(&x()).await.unwrap();
        let [_, get] = &server.requests()[..] else { panic!() };
        assert_eq!(get.json()["Key"], json!({"LockID": {"S": "pre/fix/x"}}));
    }
    let server = with_table(refused("400 X", "", "AccessDeniedException")).await;
    let examined = unseen(&server, URL).examined(false).await;
    let finding = examined.findings.iter().find(|finding| finding.check == "table").unwrap();
    assert_eq!(finding.verdict, crate::diagnosis::CheckStatus::Warning, "{finding:?}");
    assert!(finding.help.join(" ").contains("dynamodb:DescribeTable"), "{finding:?}");
}

/// A transient error does not show whether the table is safe, so the table is described again.
#[tokio::test]
async fn a_table_that_cannot_be_described_now_is_described_later() {
    let answers = Mutex::new(vec![table("ACTIVE", |_| ()), refused("400 X", "", "ThrottlingException")]);
    let server = Server::start(move |seen| {
        Reply::Answer(match seen.operation() {
            "describetable" => answers.lock().unwrap().pop().unwrap(),
            _ => ok(&json!({})),
        })
    })
    .await;
    let store = unseen(&server, URL);
    let error = write(&store).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
    write(&store).await.unwrap();
    assert_eq!(operations(&server), ["describetable", "describetable", "updateitem"]);
}

#[tokio::test]
async fn the_partition_key_has_the_name_in_the_table() {
    let named = table("ACTIVE", |t| {
        t["KeySchema"][0]["AttributeName"] = json!("LockID");
        t["AttributeDefinitions"][0]["AttributeName"] = json!("LockID");
    });
    let page = json!({"Items": [{"LockID": {"S": "pre/fix/a"}}]});
    let server = Server::start(move |seen| {
        Reply::Answer(match seen.operation() {
            "describetable" => named.clone(),
            "scan" => ok(&page),
            _ => ok(&json!({})),
        })
    })
    .await;
    let store = unseen(&server, URL);
    store.read(&x()).await.unwrap();
    store.write(&x(), Precondition::Absent, None, &record()).await.unwrap();
    let names: Vec<LockName> = store.list("").try_collect().await.unwrap();
    assert_eq!(names.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a"]);
    store.discard(&x(), &v1()).await.unwrap();
    let [_, get, create, scan, delete] = &server.requests()[..] else { panic!() };
    for seen in [get, create, delete] {
        assert_eq!(seen.json()["Key"], json!({"LockID": {"S": "pre/fix/x"}}), "{}", seen.operation());
    }
    for seen in [create, scan] {
        assert_eq!(seen.json()["ExpressionAttributeNames"]["#key"], "LockID", "{}", seen.operation());
    }
    let error = unseen(&server, "dynamodb://locks?partition_key=id").read(&x()).await.unwrap_err();
    assert!(error.to_string().contains("`LockID`, not `id`"), "{error:?}");
}

#[tokio::test]
async fn a_table_is_named_by_its_arn_in_requests() {
    let server = with_table(table("ACTIVE", |_| ())).await;
    let arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/locks";
    unseen(&server, &format!("dynamodb://{arn}/pre")).read(&x()).await.unwrap();
    for seen in server.requests() {
        assert_eq!(seen.json()["TableName"], arn);
    }
}

#[tokio::test]
async fn a_new_table_is_created_with_the_options_of_the_url() {
    let script = Mutex::new(vec![
        ok(&json!({})),
        table("ACTIVE", |_| ()),
        refused("400 X", "", "ContinuousBackupsUnavailableException"),
        table("ACTIVE", |_| ()),
        ok(&json!({})),
        refused("400 X", "", "ResourceNotFoundException"),
    ]);
    let server = Server::start(move |_| Reply::Answer(script.lock().unwrap().pop().unwrap())).await;
    let url = "dynamodb://locks?kms_key=alias/x&pitr=on&deletion_protection=on&tags=team:infra";
    unseen(&server, url).init().await.unwrap();
    let requests = server.requests();
    let operations: Vec<_> = requests.iter().map(Seen::operation).collect();
    let (describe, recover) = ("describetable", "updatecontinuousbackups");
    assert_eq!(operations, [describe, "createtable", describe, recover, describe, recover]);
    let create = requests[1].json();
    let encrypted = json!({"Enabled": true, "SSEType": "KMS", "KMSMasterKeyId": "alias/x"});
    assert_eq!(create["SSESpecification"], encrypted);
    assert_eq!(create["DeletionProtectionEnabled"], true);
    assert_eq!(create["Tags"], json!([{"Key": "team", "Value": "infra"}]));
    let specified = &requests[5].json()["PointInTimeRecoverySpecification"];
    assert_eq!(*specified, json!({"PointInTimeRecoveryEnabled": true}));

    let script = Mutex::new(vec![
        table("ACTIVE", |_| ()),
        ok(&json!({})),
        refused("400 X", "", "ResourceNotFoundException"),
    ]);
    let server = Server::start(move |_| Reply::Answer(script.lock().unwrap().pop().unwrap())).await;
    unseen(&server, "dynamodb://locks?partition_key=key").init().await.unwrap();
    let [_, create, _] = &server.requests()[..] else { panic!() };
    for name in ["SSESpecification", "DeletionProtectionEnabled", "Tags"] {
        assert_eq!(create.json().get(name), None, "as before");
    }
}

/// The request to the proxy names the host of Amazon's own endpoint.
#[tokio::test]
async fn the_options_choose_among_amazons_endpoints() {
    for (options, host) in [
        ("", "dynamodb.eu-west-1.amazonaws.com"),
        ("fips=on", "dynamodb-fips.eu-west-1.amazonaws.com"),
        ("dualstack=on", "dynamodb.eu-west-1.api.aws"),
    ] {
        let proxy = Server::always(answer("403 Forbidden", "", "")).await;
        let url = format!("dynamodb://locks?{options}&proxy={}", proxy.url);
        let store = opened(&url, None, test_credentials());
        store.key_name.set("key".to_owned()).unwrap();
        let error = write(&store).await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)), "there was no connection: {error:?}");
        let [connect, ..] = &proxy.requests()[..] else { panic!("{error:?}") };
        assert_eq!(connect.line, format!("CONNECT {host}:443"), "{options}");
    }
}
