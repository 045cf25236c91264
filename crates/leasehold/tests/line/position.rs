//! Tests that a waiter learns how many waiters are before it and who is directly before it.

use leasehold::lease::HolderInfo;

use super::*;

/// Returns how many waiters are before a waiter, and the name of the one directly before it.
fn place(told: &HolderInfo) -> (Option<usize>, Option<&str>) {
    (told.ahead, told.waiter_ahead.as_ref().map(|holder| &*holder.name))
}

#[tokio::test(start_paused = true)]
async fn each_waiter_learns_who_is_directly_before_it() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    let second = Waiter::joined(&world, 3).await;
    let third = Waiter::joined(&world, 4).await;
    assert_eq!(place(&first.refused().await), (Some(0), None));
    let told = second.refused().await;
    assert_eq!(told.waiter_ahead, Some(first.claim.holder.clone()), "with its host, process and note");
    assert_eq!(place(&third.refused().await), (Some(2), Some("waiter-3")));
    assert_eq!(place(&holder.held().await), (None, None), "a try is not in the line");
    holder.leases.release(&mut grant, None).await.unwrap();
    let told = third.refused().await;
    assert!(told.reserved, "{told:?}");
    assert_eq!(place(&told), (Some(2), Some("waiter-3")));
    first.granted().await;
    assert_eq!(place(&second.refused().await), (Some(0), None), "the one before it has the lock");
    assert_eq!(place(&third.refused().await), (Some(1), Some("waiter-3")));
}

/// A waiter that polls finds that the one before it holds the lock. It notices this without another request.
#[tokio::test(start_paused = true)]
async fn a_waiter_learns_that_the_one_before_it_has_the_lock() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    let second = Waiter::joined(&world, 3).await;
    let told = second.refused().await;
    let turn = second.turn(&told);
    let passed_on = async {
        holder.leases.release(&mut grant, None).await.unwrap();
        first.granted().await
    };
    let ((), next) = tokio::join!(turn, passed_on);
    let reads = second.client.network.counts().reads;
    let told = second.refused().await;
    assert_eq!((told.token, place(&told)), (Some(next.token), (Some(0), None)));
    assert_eq!(second.client.network.counts().reads, reads);
}
