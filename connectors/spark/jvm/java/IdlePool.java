// A pool of stages that get no task slots. They hear of lost executors, as in any pool.

import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.SchedulingMode;
import scala.collection.mutable.ArrayBuffer;

public Object generate(Object[] references) {
  return new IdlePool();
}

public final class IdlePool extends Pool {
  public IdlePool() {
    super("headgate-idle", SchedulingMode.FIFO(), 0, 1);
  }

  public ArrayBuffer getSortedTaskSetQueue() {
    return new ArrayBuffer();
  }
}
