use fastrand::Rng;

use super::*;

const A: State = Some(10);
const B: State = Some(11);
const C: State = Some(12);

/// Returns an operation of process `by`. Without an end if `until` is 0.
fn op(by: usize, (from, until): (u64, u64), step: Step) -> Operation {
    Operation { step, by, from, until: (until > 0).then_some(until) }
}

fn is_linearizable(operations: &[Operation]) -> bool {
    first_violation(operations, &[]).is_none()
}

/// Process 0 creates `A`, and replaces it by `B`.
fn a_then_b() -> Vec<Operation> {
    vec![op(0, (0, 10), Step::Write(None, A)), op(0, (20, 30), Step::Write(A, B))]
}

fn and(mut operations: Vec<Operation>, more: &[Operation]) -> Vec<Operation> {
    operations.extend_from_slice(more);
    operations
}

#[test]
fn operations_one_after_another_are_fine() {
    let operations = and(
        a_then_b(),
        &[
            op(1, (0, 40), Step::Read(A)),
            op(2, (31, 40), Step::Conflict(A)),
            op(2, (41, 50), Step::Read(B)),
            op(2, (51, 60), Step::Write(B, None)),
            op(1, (61, 70), Step::Read(None)),
            op(1, (71, 80), Step::Write(None, C)),
        ],
    );
    assert!(is_linearizable(&operations));
}

#[test]
fn a_stale_read_is_found() {
    let stale = op(1, (31, 40), Step::Read(A));
    assert_eq!(first_violation(&and(a_then_b(), std::slice::from_ref(&stale)), &[]), Some(&stale));
    assert!(is_linearizable(&and(a_then_b(), &[op(1, (30, 40), Step::Read(A))])), "they overlap");
}

#[test]
fn reads_that_go_back_are_found() {
    // Both overlap the write, so each alone is fine.
    let reads = [op(1, (20, 22), Step::Read(B)), op(2, (23, 30), Step::Read(A))];
    assert!(reads.iter().all(|read| is_linearizable(&and(a_then_b(), std::slice::from_ref(read)))));
    assert!(!is_linearizable(&and(a_then_b(), &reads)));
}

#[test]
fn a_process_that_does_not_read_its_own_write_is_found() {
    // The clock has not moved between the response and the next request.
    let stale = Step::Read(A);
    assert!(!is_linearizable(&and(a_then_b(), &[op(0, (25, 35), stale)])));
    assert!(is_linearizable(&and(a_then_b(), &[op(1, (25, 35), stale)])), "another process may");
}

#[test]
fn two_writes_over_one_version_are_found() {
    let other = [op(1, (0, 50), Step::Write(A, C))];
    assert!(!is_linearizable(&and(a_then_b(), &other)), "whichever is first, the other has not found it");
    let created = [op(1, (0, 50), Step::Write(None, C))];
    assert!(!is_linearizable(&and(a_then_b(), &created)), "it existed, or was created twice");
}

#[test]
fn a_lost_update_is_found() {
    let back = [op(1, (40, 50), Step::Write(A, C)), op(1, (60, 70), Step::Read(C))];
    assert!(!is_linearizable(&and(a_then_b(), &back)));
}

#[test]
fn a_deleted_value_that_returns_is_found() {
    let deleted = and(a_then_b(), &[op(0, (40, 50), Step::Write(B, None))]);
    assert!(is_linearizable(&and(deleted.clone(), &[op(1, (60, 70), Step::Read(None))])));
    for back in [Step::Read(B), Step::Read(A), Step::Write(B, C), Step::Conflict(None)] {
        assert!(!is_linearizable(&and(deleted.clone(), &[op(1, (60, 70), back)])), "{back:?}");
    }
}

#[test]
fn a_conflict_without_a_reason_is_found() {
    assert!(!is_linearizable(&and(a_then_b(), &[op(1, (40, 50), Step::Conflict(B))])));
    assert!(is_linearizable(&and(a_then_b(), &[op(1, (29, 50), Step::Conflict(B))])));
}

#[test]
fn a_value_that_nobody_wrote_is_found() {
    let read = [op(1, (40, 50), Step::Read(C))];
    assert!(!is_linearizable(&and(a_then_b(), &read)));
    assert!(!is_linearizable(&and(read.to_vec(), &[op(0, (60, 0), Step::Write(None, C))])), "only later");
}

#[test]
fn a_write_without_a_response_happens_once_at_any_time_or_never() {
    let unknown = and(a_then_b(), &[op(1, (32, 0), Step::Write(B, C))]);
    let late = [op(2, (900, 910), Step::Read(B)), op(2, (920, 930), Step::Read(C))];
    assert!(is_linearizable(&and(unknown.clone(), &late)));
    assert!(!is_linearizable(&and(unknown.clone(), &[late[0].clone(), op(2, (920, 930), Step::Read(A))])));
    let deleted =
        [late[1].clone(), op(0, (940, 950), Step::Write(C, None)), op(0, (960, 970), Step::Write(None, B))];
    let twice = and(and(unknown, &deleted), &[op(2, (980, 990), Step::Read(C))]);
    assert!(!is_linearizable(&twice), "it has happened already");
}

#[test]
fn a_loss_returns_to_an_earlier_state_and_only_then() {
    let lost = and(a_then_b(), &[op(1, (60, 70), Step::Read(A)), op(1, (80, 90), Step::Write(A, C))]);
    assert_eq!(first_violation(&lost, &[(40, 50)]), None);
    assert!(first_violation(&lost, &[]).is_some());
    assert!(first_violation(&lost, &[(71, 90)]).is_some(), "it was lost before");
    // After the loss, there is again one state.
    let split = and(lost.clone(), &[op(2, (91, 99), Step::Read(B))]);
    assert!(first_violation(&split, &[(40, 50)]).is_some());
    let invented = and(a_then_b(), &[op(1, (45, 50), Step::Read(C))]);
    assert!(first_violation(&invented, &[(40, 50)]).is_some(), "nobody wrote it");
}

/// Compares with a search through all orders.
#[test]
fn random_histories_are_judged_like_by_trying_all_orders() {
    let mut random = Rng::with_seed(1);
    let mut fine = 0;
    for _ in 0..20_000 {
        let operations = some_history(&mut random);
        let expected = some_order_explains(&operations, None, &mut vec![false; operations.len()]);
        assert_eq!(is_linearizable(&operations), expected, "{operations:#?}");
        fine += u32::from(expected);
    }
    assert!((2_000..18_000).contains(&fine), "{fine} of them are fine");
}

/// Returns up to six operations of three processes, each of which waits for its responses.
fn some_history(random: &mut Rng) -> Vec<Operation> {
    let mut clocks = [0_u64; 3];
    let mut operations = Vec::new();
    for n in 0..random.usize(2..7) {
        let by = random.usize(..3);
        let from = clocks[by] + random.u64(..4);
        let until = from + random.u64(1..8);
        clocks[by] = until;
        let earlier = |random: &mut Rng| [None, A, B, C][random.usize(..3.min(n + 1))];
        let step = match random.u8(..8) {
            ..3 => Step::Read(earlier(random)),
            3 => Step::Conflict(earlier(random)),
            4 => Step::Write(earlier(random), None),
            _ => Step::Write(earlier(random), Some(10 + n as u128)),
        };
        let is_open = matches!(step, Step::Write(..)) && random.u8(..4) == 0;
        operations.push(op(by, (from, if is_open { 0 } else { until }), step));
    }
    operations
}

/// Returns whether the remaining operations can happen in some order from `state`, by the definition.
fn some_order_explains(operations: &[Operation], state: State, done: &mut Vec<bool>) -> bool {
    if operations.iter().zip(done.iter()).all(|(one, done)| *done || one.until.is_none()) {
        return true;
    }
    for (n, one) in operations.iter().enumerate() {
        let precedes = |(m, other): (usize, &Operation)| {
            let in_process = other.by == one.by && m < n && other.until.is_some();
            !done[m] && (in_process || other.until.is_some_and(|until| until < one.from))
        };
        if done[n] || operations.iter().enumerate().any(precedes) {
            continue;
        }
        let after = match one.step {
            Step::Read(read) => (state == read).then_some(state),
            Step::Write(over, to) => (state == over).then_some(to),
            Step::Conflict(over) => (state != over).then_some(state),
        };
        if let Some(after) = after {
            done[n] = true;
            if some_order_explains(operations, after, done) {
                return true;
            }
            done[n] = false;
        }
    }
    false
}
